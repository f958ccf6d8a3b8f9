"""The processes of a run that can be killed without ending it, and who kills them."""

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

from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import Process, identity, kind_and_rank
from rlinf_async.wire.memory import machine

SIMULATOR_KIND = "simulator"
VICTIM_KINDS = {"simulator": SIMULATOR_KIND, "env": str(Process.ENV), "inference": str(Process.INFERENCE)}
"""Kinds of processes, by a word for each."""
FIRST_NUMBER = 2
"""Smaller ones mean the machine's first process, or groups of processes."""
PYTHON_HELPERS = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")
"""Processes that Python starts for itself: without them no simulator runs, and none stops."""


@dataclass(frozen=True)
class Victim:
    """A process of a run."""

    kind: str
    """As the records of a run call it: `env worker`."""
    name: str
    """`env worker 1`; of a simulator, whose it is: `of env worker 1`."""
    pid: int
    started: int
    """The time of its start, as in `observe.spans`: another process may have the number later."""

    def kill(self) -> bool:
        """Send SIGKILL; whether it was still there."""
        now = identity(self.pid)
        if now is None or now["started"] != self.started:
            return False
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def victims(run_dir: Path) -> list[Victim]:
    """The env workers and inference ranks of this machine that answer, and the simulators of the former."""
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
    """Return the reports of the processes of a run, by name: of those of this machine that answer.

    A number means another process on another machine, and may mean another one here by now, or may have been
    written by another account: only those that are known as the run's are left, see `same_process`.
    """
    records = RunDir(run_dir)
    here = machine()
    return {
        name: facts
        for name, facts in (records.read(records.status).get("processes") or {}).items()
        if isinstance(facts, dict) and facts.get("machine") == here and same_process(facts, run_dir)
    }


def step_of(run_dir: Path) -> int:
    """Steps that a run has trained."""
    records = RunDir(run_dir)
    return int(records.read(records.status).get("step", 0))


def simulators_of(pid: int) -> list[int]:
    """Children of a process, but those that Python has for itself; none if it has just ended."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return [child for child in children if _simulates(child)]


def _simulates(pid: int) -> bool:
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return bool(command) and not any(helper in command for helper in PYTHON_HELPERS)
    return False  # it has just ended; one that has, and is not collected yet, has no command line


def same_process(record: Mapping[str, Any], run_dir: Path) -> bool:
    """Return True if the process that a record of the run names lives, is the same one, and belongs to the
    run: it has started then, runs that, and holds the pipe open that `observe.stacks` has made for it.
    """
    pid = record.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < FIRST_NUMBER or pid == os.getpid():
        return False
    now = identity(pid)
    if now is None or any(record.get(name) != fact for name, fact in now.items()):
        return False
    return _holds_pipe(pid, RunDir(run_dir).stacks.resolve())


def _holds_pipe(pid: int, stacks: Path) -> bool:
    """Return True if a process has its pipe open, by which it is asked for its stacks and which has its
    number.
    """
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                opened = Path(os.readlink(descriptor))
                if opened.parent == stacks and opened.name.endswith(f"-{pid}.ask"):
                    return True
    return False


LOOK_S = 0.5


class Killer(threading.Thread):
    """Sends SIGKILL to a process of the run every `every_s`, once `first_step` is trained, until `stop`.

    The kind is drawn first, then one of that kind, so that simulators, of which there are most, are not the
    only ones.
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
        """`kinds` are words of `VICTIM_KINDS`; `on_kill` is called in this thread after each."""
        super().__init__(daemon=True)
        self._run_dir, self._every_s, self._first_step = run_dir, every_s, first_step
        self._kinds, self._on_kill = kinds, on_kill
        self._draw = random.Random(seed)
        self._stopped = threading.Event()
        self.killed: list[Victim] = []

    def run(self) -> None:
        while step_of(self._run_dir) < self._first_step:
            if self._stopped.wait(LOOK_S):
                return
        while not self._stopped.wait(self._every_s):
            self._kill_one()

    def stop(self) -> None:
        """Stop killing; return once no more process will be killed."""
        self._stopped.set()
        self.join()

    def candidates(self, kind: str) -> list[Victim]:
        """Those of a kind that can be killed now."""
        return [victim for victim in victims(self._run_dir) if victim.kind == kind]

    def _kill_one(self) -> None:
        kind = VICTIM_KINDS[self._draw.choice(self._kinds)]
        candidates = self.candidates(kind)
        if not candidates:
            return  # all of them are away, being started again
        victim = self._draw.choice(candidates)
        if not victim.kill():
            return
        self.killed.append(victim)
        self._on_kill(victim)
