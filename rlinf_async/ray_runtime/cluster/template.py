"""The template of a cluster's workers, as its driver starts it. This module imports no Ray, which takes
time: the template can begin to import while the driver does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

from rlinf_async.ray_runtime.cluster import worker_template
from rlinf_async.ray_runtime.cluster.start_worker import TEMPLATE_VARIABLE

SWITCH_VARIABLE = "RLINF_ASYNC_FORKED_WORKERS"
"""Set to 0, it has each of Ray's workers start Python, as Ray does."""
TESTED_VERSIONS = ("2.60.",)
"""Ray is not made to be forked: what it keeps from its import was looked at in these versions."""
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
THREADS_VARIABLE = "OMP_NUM_THREADS"
ASSIGNED = {
    "RAY_JOB_ID": "ffffffff",
    "RAY_LD_PRELOAD_ON_WORKERS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "SPT_NOENV": "1",
}
"""Variables that Ray sets in its workers. It reads all of its own when it is imported, once for a process.
"""
RAYLET_VARIABLE = "RAY_RAYLET_PID"
DEVICE_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/davinci_manager")
"""Files of GPUs and NPUs: imports of workers may open them, and a fork cannot use what was opened before."""
UNASSIGNED = {"RAY_JOB_ID": "ffffffff"}
"""The job of workers that Ray starts before it needs them; such a worker serves the first job that asks."""


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


class Template:
    """A template that imports, and serves no cluster yet."""

    def __init__(self, shared: Shared, variables: Mapping[str, str] = NO_VARIABLES) -> None:
        self.variables = variables
        """Variables that all workers have, besides those of this process."""
        self.name = f"rlinf-async-{token_hex(16)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{self.name}")
            listener.listen(socket.SOMAXCONN)
            self.process = _start(listener, shared, {**_own_variables(), **variables})

    def serve(self, raylet: int) -> None:
        """Serve the cluster of a raylet, by its number, and end with it; a second call does nothing."""
        if self.serves:
            return
        cluster = {"raylet": raylet, "environment": {**_own_variables(), **self.variables}}
        with suppress(BrokenPipeError), self._input() as file:  # it has ended: workers start as ever
            file.write(json.dumps(cluster).encode())

    @property
    def serves(self) -> bool:
        """True if it serves a cluster, or has served one."""
        return bool(self._input().closed)

    def end(self) -> None:
        """End it at once."""
        with suppress(BrokenPipeError):
            self._input().close()
        self.process.kill()
        self.process.wait()

    def _input(self) -> Any:
        return self.process.stdin


class Early:
    """The template that this process has started before Ray, for the cluster that it will start."""

    def __init__(self) -> None:
        self._begun: tuple[Shared, Template] | None = None

    def begin(self, shared: Shared) -> None:
        """Start it, unless there is one, or this Ray's workers are not forked."""
        if self._begun is None and can_be_forked():
            self._begun = shared, Template(shared)

    @contextmanager
    def begun(self, shared: Shared) -> Iterator[None]:
        """A block that begins with `begin`, and leaves no template behind that no cluster has taken."""
        self.begin(shared)
        with self.ended_unless_taken():
            yield

    def take(self, shared: Shared, variables: Mapping[str, str] = NO_VARIABLES) -> Template:
        """Return it, or a new one if there is none for these modules."""
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == shared:
            begun[1].variables = variables
            return begun[1]
        if begun is not None:
            begun[1].end()
        return Template(shared, variables)

    @contextmanager
    def ended_unless_taken(self) -> Iterator[None]:
        """A block that leaves no template behind, except one that a cluster has taken."""
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """End it if no cluster has taken it."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[1].end()


EARLY = Early()


def can_be_forked() -> bool:
    """Return True if workers of this Ray can be forked here, and the user has not switched that off.

    Not where there is a GPU: this has not been run on one.
    """
    if not has_process_files() or os.environ.get(SWITCH_VARIABLE) == "0":
        return False
    if any(Path(name).exists() for name in DEVICE_FILES):
        return False
    try:
        return version("ray").startswith(TESTED_VERSIONS)
    except PackageNotFoundError:
        return False


def has_process_files() -> bool:
    """Return True if files can stand for processes here: some kernels and containers have none."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _own_variables() -> dict[str, str]:
    """Return this process's variables without the name of a template that it has started before."""
    return {name: value for name, value in os.environ.items() if name != TEMPLATE_VARIABLE}


def _start(listener: socket.socket, shared: Shared, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    plan: dict[str, Any] = {name: tuple(value) for name, value in asdict(shared).items()}
    plan |= {"assigned": ASSIGNED, "unassigned": UNASSIGNED, "raylet": RAYLET_VARIABLE}
    if THREADS_VARIABLE not in environment:
        # Ray sets it in workers before torch, which reads it once, is imported there.
        plan |= {"early": (), "modules": ()}
    folder = Path(os.path.realpath(sys.argv[0])).parent
    return subprocess.Popen(
        [sys.executable, worker_template.__file__, str(listener.fileno()), str(folder), json.dumps(plan)],
        # As Ray starts its own: a library may have set variables that `os.environ` does not know.
        env=environment,
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
