"""Who can be killed in a run, and a thread that kills one of them again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.observe.processes import Process, kind_and_rank

SIMULATOR = b"rlinf_async.demo.simulators.child_process"
"""In the command line of a simulator that has a process of its own."""
KINDS = ("simulator", "env worker", "inference rank")
LOOK_S = 0.5


@dataclass(frozen=True)
class Victim:
    """A process of a run."""

    kind: str
    name: str
    pid: int


def victims(run_dir: Path) -> list[Victim]:
    """The env workers and inference ranks that answer, and the simulators of those env workers."""
    found = []
    for name, said in processes(run_dir).items():
        kind, _ = kind_and_rank(name)
        if kind not in (Process.ENV, Process.INFERENCE) or not said.get("pid"):
            continue
        found.append(Victim(str(kind), name, said["pid"]))
        if kind == Process.ENV:
            found += [Victim("simulator", f"of {name}", pid) for pid in simulators_of(said["pid"])]
    return found


def processes(run_dir: Path) -> dict[str, Any]:
    """What every process of a run that answers says of itself, by its name."""
    said = _status(run_dir).get("processes", {})
    return {name: facts for name, facts in said.items() if facts is not None}


def step_of(run_dir: Path) -> int:
    """Steps that have been trained."""
    return int(_status(run_dir).get("step", 0))


class Killer(threading.Thread):
    """Sends SIGKILL to a process of the run every `every_s`, once `first_step` is trained, until `stop`.

    The kind is drawn first, then one of that kind, so that simulators, of which there are most, are not the
    only ones.
    """

    def __init__(self, run_dir: Path, *, every_s: float, first_step: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._run_dir, self._every_s, self._first_step = run_dir, every_s, first_step
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
        """Kill nobody any more; returns once that is so."""
        self._stopped.set()
        self.join()

    def _kill_one(self) -> None:
        kind = self._draw.choice(KINDS)
        candidates = [victim for victim in victims(self._run_dir) if victim.kind == kind]
        if not candidates:
            return  # all of them are away, being started again
        victim = self._draw.choice(candidates)
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
            self.killed.append(victim)


def _status(run_dir: Path) -> dict[str, Any]:
    try:
        status: dict[str, Any] = json.loads((run_dir / "status.json").read_text())
    except FileNotFoundError:
        return {}
    return status


def simulators_of(pid: int) -> list[int]:
    """Children of a process that are simulators; none if it has just ended."""
    children: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return [child for child in children if _is_simulator(child)]


def _is_simulator(pid: int) -> bool:
    with suppress(OSError):
        return SIMULATOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
