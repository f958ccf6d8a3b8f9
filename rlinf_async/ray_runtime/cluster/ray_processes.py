"""Ray's own processes: checks that they live, and finds the dead process that has ended a run.

Ray reports the death of its raylet as that of an unreachable worker, and ends the driver a minute after its
store, `gcs_server`, has died. So the driver checks by itself: the processes of a cluster that it has started,
else whether the store of the cluster answers.

Ray's helpers and workers are children of its raylet. If the store or the raylet has died, these children wait
for it for a minute, or for ever. The driver remembers them while Ray lives, and ends them with its run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray

from rlinf_async.ray_runtime.cluster.environment import connection_error

STORE_PROCESS = "gcs_server"
RAYLET_PROCESS = "raylet"
CHECK_INTERVAL_S = 2.0
TERMINATE_TIMEOUT_S = 3.0
"""Processes that have not ended this long after SIGTERM are killed."""
HELPER_FAILED_WORDS = "because one Ray agent failed, agent_name = "
"""The raylet logs this when one of its helpers has died; it then ends its workers and itself."""
HELPER_CLASSES = {"runtime_env_agent": "RuntimeEnvAgent", "dashboard_agent": "DashboardAgent"}


@dataclass(frozen=True)
class DeadProcess:
    """A process of Ray's that has ended while the run went on."""

    name: str
    pid: int | None
    """The process number; None if the process ran on another machine."""
    logs: Path | None
    """The folder of Ray's logs, if it is on this machine."""
    helper: str | None = None
    """The dead helper that has ended the process."""

    def __str__(self) -> str:
        number = f" ({self.pid})" if self.pid is not None else ""
        because = f", as its helper {self.helper} had" if self.helper else ""
        return f"Ray's process {self.name}{number} has died{because}"


class RayDied(RuntimeError):
    """A process of Ray's has died, and the run cannot go on."""

    def __init__(self, dead: DeadProcess) -> None:
        super().__init__(str(dead))
        self.dead = dead


class RayWatch:
    """Checks from time to time that Ray lives."""

    def __init__(self) -> None:
        self._next = 0.0

    def check(self) -> float:
        """Check if a check is due; return the seconds until the next one.

        Raises:
            RayDied: a process of Ray's has died.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + CHECK_INTERVAL_S
            REMEMBERED.look()
            if (dead := dead_process()) is not None:
                raise RayDied(dead)
        return self._next - now


class OwnProcesses:
    """The processes of the cluster that this driver has started, known by number and start time."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Remember the running processes with all their descendants; forget those that have ended."""
        self._seen = {process for process in self._seen if process.is_running()}
        for own in _processes(_node()).values():
            with suppress(psutil.Error):
                process = psutil.Process(own.pid)
                self._seen |= {process, *process.children(recursive=True)}

    def end(self) -> None:
        """End all remembered processes, with SIGKILL if they ignore SIGTERM."""
        self.look()
        left = [process for process in self._seen if process.pid != os.getpid()]
        for ask in (psutil.Process.terminate, psutil.Process.kill):
            for process in left:
                # psutil checks itself that the number has not been reused.
                with suppress(psutil.Error):
                    ask(process)
            _, left = psutil.wait_procs(left, timeout=TERMINATE_TIMEOUT_S)
        self._seen = set(left)


REMEMBERED = OwnProcesses()
"""The processes of this driver's cluster; a driver has one cluster at a time."""


@contextmanager
def leaving_nothing_of_a_dead_ray() -> Iterator[None]:
    """When the block ends, end all processes of the driver's own cluster if its store or raylet has died."""
    try:
        yield
    finally:
        if dead_process() is not None:
            REMEMBERED.end()


def dead_process(*, closely: bool = False) -> DeadProcess | None:
    """Return the process of Ray's that has died; None if all known ones live, or Ray was never started.

    With `closely`, a raylet that is about to end counts as dead: its workers die before it does.
    """
    # Ray has no public API for this. A Ray version without these private attributes counts as alive.
    node = _node()
    processes = _processes(node)
    for name in (STORE_PROCESS, RAYLET_PROCESS):
        process = processes.get(name)
        if process is None:
            continue
        dead, logs = process.poll() is not None, Path(node.get_logs_dir_path())
        helper = _helper(logs) if name == RAYLET_PROCESS and (dead or closely) else None
        if dead or helper is not None:
            return DeadProcess(name, process.pid, logs, helper)
    if (
        node is not None
        and STORE_PROCESS not in processes
        and connection_error(str(node.gcs_address)) is not None
    ):
        return DeadProcess(STORE_PROCESS, None, None)
    return None


def is_own() -> bool:
    """Return True if this process has started the Ray cluster that it uses."""
    return STORE_PROCESS in _processes(_node())


def _node() -> Any:
    return getattr(ray._private.worker, "_global_node", None)


def _processes(node: Any) -> dict[str, Any]:
    """Return Ray's processes in this driver's own cluster, by name."""
    every = getattr(node, "all_processes", None) or {}
    return {name: infos[0].process for name, infos in every.items() if infos}


def _helper(logs: Path) -> str | None:
    """Return the dead helper that ended a raylet, by the raylet's own log; None if no helper died."""
    try:
        with (logs / "raylet.out").open("rb") as file:
            # Only the end of the log, which may be long: the raylet ends soon after this line.
            file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        _, marker, rest = line.partition(HELPER_FAILED_WORDS)
        if marker:
            name = rest.strip().rstrip(".")
            return HELPER_CLASSES.get(name, name)
    return None
