"""A run whose Ray workers are forked from one process, which has imported what all of them do.

    python tests/runs/forked_workers.py (-m MODULE | SCRIPT) [ARGUMENT ...]

The driver and the dozen workers of a run each import torch, transformers and Ray, for seconds of a processor,
and then do three small steps. Here torch and transformers are imported once; then a template of workers is
forked, and this process goes on as the command. Where Ray would start a worker it starts `worker_request.py`,
which tells the template what it was started with. The template imports Ray at the first request, in its
environment, and forks for each; the child goes on as that worker. The package and RLinf are not imported in
the template: each worker imports them, and replaces their classes, as it does for users.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

TEMPLATE_VARIABLE = "TESTS_WORKER_TEMPLATE"
"""It holds the name of the template's socket, which ends with the template."""
LIBRARIES = ("torch.distributed.tensor", "torch._inductor.compile_fx", "transformers", "tensordict")
"""What the driver and most workers import, in whatever environment."""
RAY = ("ray._private.workers.default_worker", "ray.util.state")
"""It reads variables when it is imported, which the command sets before."""
PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    _import(LIBRARIES)
    driver = os.getpid()
    name = f"worker-template-{driver}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")
    listener.listen()
    if os.fork() == 0:
        _end_with(driver)
        arguments = _wait_to_be_a_worker(listener)
    else:
        listener.close()
        os.environ[TEMPLATE_VARIABLE] = name
        os.environ["RLINF_ASYNC_FORKED_WORKERS"] = "0"  # the run's own template, which would serve nothing
        sys.meta_path.insert(0, RequestsInRay())
    _run(arguments)


class RequestsInRay(MetaPathFinder):
    """Has Ray start requests once it is imported: before that, the command sets variables which it reads."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name != "ray._private.node":
            return
        sys.meta_path.remove(self)
        from ray._private.parameter import RayParams

        update = RayParams.update_if_absent

        def update_with_requests(params: RayParams, **values: Any) -> None:
            if "setup_worker_path" in values:
                values["setup_worker_path"] = str(Path(__file__).with_name("worker_request.py"))
            update(params, **values)

        RayParams.update_if_absent = update_with_requests


def _end_with(driver: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        os._exit(0)


def _wait_to_be_a_worker(listener: socket.socket) -> list[str]:
    """Fork for each request; the arguments of the worker, in a child."""
    # Children are not waited for, and Ray takes a worker that has ended so for one that is alive.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    imported = False
    while True:
        connection, _ = listener.accept()
        _, files, _, _ = socket.recv_fds(connection, 1, 3)
        with connection, connection.makefile() as text:
            request = json.load(text)
        if not imported:
            _set_environment(request["environment"])
            _import(RAY)
            gc.collect()
            gc.freeze()
            imported = True
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _become(request, files)
        for file in files:
            os.close(file)


def _import(names: Sequence[str]) -> None:
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def _become(request: dict[str, Any], files: list[int]) -> list[str]:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.setpgid(0, 0 if request["leads"] else request["group"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    _set_environment(request["environment"])
    return _set_up(request["arguments"])


def _set_environment(environment: dict[str, str]) -> None:
    before = _python_path()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[1 : 1 + len(before)] = _python_path()


def _python_path() -> list[str]:
    return list(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def _set_up(arguments: list[str]) -> list[str]:
    """What `ray/_private/workers/setup_worker.py` does."""
    from ray._private.runtime_env.context import RuntimeEnvContext
    from ray._private.utils import update_envs
    from ray._private.workers.setup_worker import parser
    from ray.core.generated.common_pb2 import Language

    options, arguments = parser.parse_known_args(arguments)
    context = RuntimeEnvContext.deserialize(options.serialized_runtime_env_context or "{}")
    if context.py_executable != sys.executable or context.command_prefix:
        context.exec_worker(arguments, Language.Value(options.language))
    before = _python_path()
    update_envs(context.env_vars)
    sys.path[1 : 1 + len(before)] = _python_path()
    return arguments


def _run(arguments: list[str]) -> None:
    """What `python ARGUMENT ...` does."""
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
