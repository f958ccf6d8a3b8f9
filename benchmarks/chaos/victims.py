"""The processes of a run that can be killed without ending the run, and a thread that kills them."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import Process, identity, kind_and_rank
from rlinf_async.wire.memory import machine

SIMULATOR_KIND = "simulator"
VICTIM_KINDS = {"simulator": SIMULATOR_KIND, "env": str(Process.ENV), "inference": str(Process.INFERENCE)}
"""Kinds of processes as the records of a run name them, by a short word for each."""
SMALLEST_PID = 2
"""Smaller numbers mean the machine's first process, or groups of processes."""
PYTHON_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Helper processes of Python's multiprocessing: simulators can neither start nor stop without them."""


@dataclass(frozen=True)
class Victim:
    """A process of a run."""

    kind: str
    """The kind as the records of a run name it, such as `env worker`."""
    name: str
    """The name, such as `env worker 1`; for a simulator, its owner: `of env worker 1`."""
    pid: int
    started: int
    """Start time as in `observe.spans`: a later process may have the same pid."""

    def kill(self) -> bool:
        """Send SIGKILL; return False if the process has already ended."""
        now = identity(self.pid)
        if now is None or now["started"] != self.started:
            return False
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def victims(run_dir: Path) -> list[Victim]:
    """Return this machine's env workers and inference ranks that answer, and the env workers' simulators."""
    found = []
    for name, record in processes(run_dir).items():
        kind, _ = kind_and_rank(name)
        if kind not in VICTIM_KINDS.values():
            continue
        found.append(Victim(kind, name, record["pid"], record["started"]))
        if kind == Process.ENV:
            for pid in simulators_of(record["pid"]):
                if (now := identity(pid)) is not None:
                    found.append(Victim(SIMULATOR_KIND, f"of {name}", pid, now["started"]))
    return found


def processes(run_dir: Path) -> dict[str, Mapping[str, Any]]:
    """Return the records of the processes of a run that live on this machine, by name.

    A pid in the status file may belong to another machine, may be reused on this one, or may have been
    written by another account: only processes that `same_process` confirms are returned.
    """
    here, status = machine(), RunReader(run_dir).status()
    return {
        name: facts
        for name, facts in (status.processes if status is not None else {}).items()
        if isinstance(facts, dict) and facts.get("machine") == here and same_process(facts, run_dir)
    }


def step_of(run_dir: Path) -> int:
    """Return the number of steps that a run has trained."""
    status = RunReader(run_dir).status()
    return status.step if status is not None else 0


def simulators_of(pid: int) -> list[int]:
    """Return the children of a process without Python's own helpers; none if the process has ended."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return [child for child in children if _simulates(child)]


def _simulates(pid: int) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return bool(command) and not any(helper in command for helper in PYTHON_HELPERS)
    return False  # the process has just ended; a zombie has an empty command line


def same_process(record: Mapping[str, Any], run_dir: Path) -> bool:
    """Return True if the process of `record` is alive and belongs to the run.

    Start time and command have to be those of the record, and the process has to hold the pipe open that
    `observe.stacks` has made for it.
    """
    pid = record.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < SMALLEST_PID or pid == os.getpid():
        return False
    now = identity(pid)
    if now is None or any(record.get(name) != fact for name, fact in now.items()):
        return False
    return _holds_pipe(pid, RunDir(run_dir).stacks.resolve())


def _holds_pipe(pid: int, stacks: Path) -> bool:
    """Return True if a process holds its pipe for stack requests open, `…-PID.ask` in `stacks`."""
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                opened = Path(os.readlink(descriptor))
                if opened.parent == stacks and opened.name.endswith(f"-{pid}.ask"):
                    return True
    return False


LOOK_INTERVAL_S = 0.5


class Killer(threading.Thread):
    """Sends SIGKILL to a process of the run every `every_s` seconds, from step `first_step` until `stop`.

    The kind is drawn first, then a process of that kind, so that simulators, the most numerous, are not hit
    more often than other kinds.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        every_s: float,
        first_step: int,
        seed: int,
        kinds: Sequence[str] = tuple(VICTIM_KINDS),
        on_kill: Callable[[Victim], None] = lambda victim: None,
    ) -> None:
        """`kinds` are keys of `VICTIM_KINDS`; this thread calls `on_kill` after each kill."""
        super().__init__(daemon=True)
        self._run_dir, self._every_s, self._first_step = run_dir, every_s, first_step
        self._kinds, self._on_kill = kinds, on_kill
        self._draw = random.Random(seed)
        self._stopped = threading.Event()
        self.killed: list[Victim] = []

    def run(self) -> None:
        while step_of(self._run_dir) < self._first_step:
            if self._stopped.wait(LOOK_INTERVAL_S):
                return
        while not self._stopped.wait(self._every_s):
            self._kill_one()

    def stop(self) -> None:
        """Stop killing; when this returns, no further process is killed."""
        self._stopped.set()
        self.join()

    def candidates(self, kind: str) -> list[Victim]:
        """Return the living processes of a kind."""
        return [victim for victim in victims(self._run_dir) if victim.kind == kind]

    def _kill_one(self) -> None:
        kind = VICTIM_KINDS[self._draw.choice(self._kinds)]
        candidates = self.candidates(kind)
        if not candidates:
            return  # all processes of this kind are being restarted
        victim = self._draw.choice(candidates)
        if not victim.kill():
            return
        self.killed.append(victim)
        self._on_kill(victim)
