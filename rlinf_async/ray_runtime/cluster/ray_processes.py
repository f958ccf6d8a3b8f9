"""Ray's own processes: whether they live, and which of them has ended a run.

Ray tells the death of its raylet as that of a worker that cannot be reached, and ends the driver by itself a
minute after its store, `gcs_server`, has died. So the driver looks by itself, at the processes of a cluster
that it has started, and otherwise whether the store answers.

Ray's helpers and workers are children of its raylet. Where the store or the raylet has died they wait for it
for a minute, or for ever: the driver remembers them while all is well, and ends them with its run.
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
EVERY_S = 2.0
END_WITHIN_S = 3.0
"""For what is asked to end; what has not by then is killed."""
HELPER_FAILED = "because one Ray agent failed, agent_name = "
"""The line that the raylet logs when one of its helpers has died; it then ends its workers, and itself."""
HELPER_CLASSES = {"runtime_env_agent": "RuntimeEnvAgent", "dashboard_agent": "DashboardAgent"}


@dataclass(frozen=True)
class DeadProcess:
    """One of Ray's that has ended while the run went on."""

    name: str
    pid: int | None
    """None if it runs on another machine."""
    logs: Path | None
    helper: str | None = None
    """The helper whose end has ended it."""

    def __str__(self) -> str:
        number = f" ({self.pid})" if self.pid is not None else ""
        because = f", as its helper {self.helper} had" if self.helper else ""
        return f"Ray's process {self.name}{number} has died{because}"


class RayDied(RuntimeError):
    """Ray cannot go on, and with it the run."""

    def __init__(self, dead: DeadProcess) -> None:
        super().__init__(str(dead))
        self.dead = dead


class RayWatch:
    """Looks now and then whether Ray lives."""

    def __init__(self) -> None:
        self._next = 0.0

    def check(self) -> float:
        """Look, if it is time for that; the seconds until it is again.

        Raises:
            RayDied: it does not.
        """
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_S
            REMEMBERED.look()
            if (dead := dead_process()) is not None:
                raise RayDied(dead)
        return self._next - now


class OwnProcesses:
    """The processes of the cluster that this driver has started, each by its number and its start."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Remember those that are there now, with all that they have started; forget those that have gone."""
        self._seen = {process for process in self._seen if process.is_running()}
        for own in _processes(_node()).values():
            with suppress(psutil.Error):
                process = psutil.Process(own.pid)
                self._seen |= {process, *process.children(recursive=True)}

    def end(self) -> None:
        """End all of them, by force where they do not heed."""
        self.look()
        left = [process for process in self._seen if process.pid != os.getpid()]
        for ask in (psutil.Process.terminate, psutil.Process.kill):
            for process in left:
                # It looks itself whether the number has been given to another one.
                with suppress(psutil.Error):
                    ask(process)
            _, left = psutil.wait_procs(left, timeout=END_WITHIN_S)
        self._seen = set(left)


REMEMBERED = OwnProcesses()
"""Those of this process, which has one cluster at a time."""


@contextmanager
def leaving_nothing_of_a_dead_ray() -> Iterator[None]:
    """Behind this block nothing of the driver's own cluster is left if its store or its raylet has died."""
    try:
        yield
    finally:
        if dead_process() is not None:
            REMEMBERED.end()


def dead_process(*, closely: bool = False) -> DeadProcess | None:
    """The process of Ray's that has died; None if all that are known of live, or Ray was never started.

    With `closely` a raylet that is about to end counts, too: its workers have died of it before itself.
    """
    # Ray has no public way to ask. Where it is another one's, or has none of these, there is no answer.
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


def _node() -> Any:
    return getattr(ray._private.worker, "_global_node", None)


def _processes(node: Any) -> dict[str, Any]:
    """Ray's processes of this driver's own cluster, by name."""
    every = getattr(node, "all_processes", None) or {}
    return {name: infos[0].process for name, infos in every.items() if infos}


def _helper(logs: Path) -> str | None:
    """Return the helper whose death ended a raylet, by the raylet's own log; None if no helper died."""
    try:
        with (logs / "raylet.out").open("rb") as file:
            # The end of the log alone: it may be long, and the raylet ends soon after this line.
            file.seek(max(0, os.fstat(file.fileno()).st_size - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        _, marker, rest = line.partition(HELPER_FAILED)
        if marker:
            name = rest.strip().rstrip(".")
            return HELPER_CLASSES.get(name, name)
    return None
