"""A start of Ray without work that only costs time: imports for a check, and what all workers import."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import ray
from ray._private import ray_constants, utils

from rlinf_async.ray_runtime.cluster import start_worker, worker_template

SCRIPT_NAME = "SETUP_WORKER_FILENAME"
"""Ray's constant with the name of the script that starts worker processes with variables of their own."""
CHECK = "get_dashboard_dependency_error"
"""Ray's function that imports what its dashboard imports, to see if it is there."""
DASHBOARDS_PACKAGES = ("aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "prometheus_client")


SWITCH_VARIABLE = "RLINF_ASYNC_FORKED_WORKERS"
"""Set to 0, it has each of Ray's workers start Python, as Ray does."""
TESTED_VERSIONS = ("2.60.",)
"""Ray is not made to be forked: what it keeps from its import was looked at in these versions."""
THREADS_VARIABLE = "OMP_NUM_THREADS"
TEMPLATE = "rlinf_async_worker_template"
"""The name of the template among Ray's processes of a node."""
VARIABLES_OF_RAY = (
    "RAY_JOB_ID",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "RAY_RAYLET_PID",
    "RAY_USAGE_STATS_ENABLED",
    "SPT_NOENV",
)
"""Variables that Ray sets in its workers. It reads all of its own when it is imported, once for a process."""
UNASSIGNED = {"RAY_JOB_ID": "ffffffff"}
"""The job of workers that Ray starts before it needs them; such a worker serves the first job that asks."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Shared:
    """What the workers of a run have in common."""

    early: tuple[str, ...] = ()
    """Modules that most of them import, and that do not import Ray."""
    modules: tuple[str, ...] = ()
    """Others."""
    free: frozenset[str] = frozenset()
    """Variables that differ from worker to worker: if importing a module reads one of them, a worker with
    another value starts Python."""
    checked: frozenset[str] = frozenset()
    """The same for variables that an import reads, where its outcome is known to be the same."""


@contextmanager
def starting_quickly(
    shared: Shared | None = None, variables: Mapping[str, str] = NO_VARIABLES
) -> Iterator[None]:
    """A block where a Ray cluster that this process starts uses `start_worker`, with a template for workers,
    and where the packages of Ray's dashboard are looked up instead of imported. The template has the
    environment of this process with `variables`, which all workers have.

    A Ray version without one of these private names starts as ever.
    """
    with ExitStack() as patches:
        if hasattr(ray_constants, SCRIPT_NAME) and sys.platform == "linux":
            # Ray joins it to a folder, which an absolute path replaces.
            own = str(Path(start_worker.__file__).resolve())
            patches.enter_context(patch.object(ray_constants, SCRIPT_NAME, own))
            if shared is not None and _can_be_forked():
                patches.enter_context(_template(shared, variables))
        if hasattr(utils, CHECK):
            patches.enter_context(patch.object(utils, CHECK, _looked_up(getattr(utils, CHECK))))
        yield


def _can_be_forked() -> bool:
    tested = ray.__version__.startswith(TESTED_VERSIONS)
    return tested and hasattr(os, "pidfd_open") and os.environ.get(SWITCH_VARIABLE) != "0"


@contextmanager
def _template(shared: Shared, variables: Mapping[str, str]) -> Iterator[None]:
    """A block with a template, which serves the cluster that is started in it, and ends with it."""
    name = f"rlinf-async-{token_hex(16)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(socket.SOMAXCONN)
        process = _start(listener, shared, variables)
    raylet = None
    try:
        with patch.dict(os.environ, {start_worker.TEMPLATE_VARIABLE: name}):
            yield
        node: Any = getattr(ray._private.worker, "_global_node", None)
        processes = getattr(node, "all_processes", None) or {}
        for raylet in processes.get(ray_constants.PROCESS_TYPE_RAYLET, ()):
            # Ray ends it with the others, and so does `ray_processes`.
            processes[TEMPLATE] = [raylet._replace(process=process, stdout_file=None, stderr_file=None)]
            with suppress(BrokenPipeError):  # it has ended: workers start as ever
                process.stdin.write(f"{raylet.process.pid}".encode())  # type: ignore[union-attr]
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        if raylet is None:
            process.kill()
            process.wait()


def _start(
    listener: socket.socket, shared: Shared, variables: Mapping[str, str] = NO_VARIABLES
) -> subprocess.Popen[bytes]:
    # A copy, as for Ray's own processes: a library may have set variables that `os.environ` does not know.
    environment = {**os.environ, **variables}
    plan: dict[str, Any] = {
        **{name: tuple(value) for name, value in asdict(shared).items()},
        "adopted": VARIABLES_OF_RAY,
        "unassigned": UNASSIGNED,
    }
    if THREADS_VARIABLE not in environment:
        # Ray sets it in workers before torch, which reads it once, is imported there.
        plan |= {"early": (), "modules": ()}
    folder = Path(os.path.realpath(sys.argv[0])).parent
    return subprocess.Popen(
        [sys.executable, worker_template.__file__, str(listener.fileno()), str(folder), json.dumps(plan)],
        env=environment,
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )


def _looked_up(imported: Callable[[], Any]) -> Callable[[], Any]:
    def look() -> Any:
        return None if all(find_spec(name) for name in DASHBOARDS_PACKAGES) else imported()

    return look
