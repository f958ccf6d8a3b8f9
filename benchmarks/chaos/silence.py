"""Processes that are stopped (SIGSTOP): who notices, when, and what is done about it.

    python -m benchmarks.chaos.silence
    python -m benchmarks.chaos.silence simulator

The demo with two env workers and two inference ranks, and the default of every deadline; a run for each kind
of process. To pass: it is found and named within two minutes; an env worker, an inference rank and a
simulator are replaced, and the run ends with status 0 and books that add up; without a learner rank or a
channel it ends with status 1. A run that is in `silence.json` is not repeated unless it is named.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.chaos.runs import DEMOS, Outcome, training
from benchmarks.chaos.victims import processes, step_of, victims
from benchmarks.kept import Kept
from rlinf_async.lab.process import OWN_CLUSTER, run_command
from rlinf_async.lab.table import markdown
from rlinf_async.observe.failures import read_failures

RESULTS = Path(__file__).with_name("silence.json")
RUNS = Path("runs/chaos-silence")
STEPS = 12
FIRST_STEP = 3
DEADLINE_S = 600.0
FOUND_S = 120.0
"""What is to be reached."""
LOOK_S = 0.2
OUTLIVED = ("env worker 1", "inference rank 1", "simulator")
FATAL = ("learner rank 0", "request channel 0", "coordinator 0")


class Stopper(threading.Thread):
    """Stops `target` of a run once `FIRST_STEP` is trained; `at` is when."""

    def __init__(self, run_dir: Path, target: str) -> None:
        super().__init__(daemon=True)
        self._run_dir, self._target = run_dir, target
        self._over = threading.Event()
        self.at: float | None = None

    def run(self) -> None:
        while not self._over.wait(LOOK_S):
            pid = pid_of(self._run_dir, self._target)
            if step_of(self._run_dir) >= FIRST_STEP and pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self.at = time.time()
                    return

    def end(self) -> None:
        """Stop nobody any more."""
        self._over.set()
        self.join()


def pid_of(run_dir: Path, target: str) -> int | None:
    """The number of a process of a run; of `simulator`, that of the first."""
    if target == "simulator":
        return next((victim.pid for victim in victims(run_dir) if victim.kind == target), None)
    said = processes(run_dir).get(target) or {}
    return said.get("pid")


def stop_one(target: str) -> dict[str, Any]:
    """Train, and stop `target`; what the run did about it."""
    directory = RUNS / target.replace(" ", "-")
    command = training(directory, DEMOS["rlinf"].settings, steps=STEPS)
    stopper = Stopper(directory, target)
    stopper.start()
    try:
        log = directory.with_suffix(".log")
        status = run_command(command, log, environment=OWN_CLUSTER, deadline_s=DEADLINE_S)
    finally:
        stopper.end()
    return said_of(directory, status=status, stopped_at=stopper.at)


def said_of(directory: Path, *, status: int, stopped_at: float | None) -> dict[str, Any]:
    """When the first fault after `stopped_at` was found, what was written of it, and how the run ended."""
    outcome = Outcome.of(directory, status=status, killed=[])
    said: dict[str, Any] = {"status": status, "steps": outcome.steps, "unaccounted": outcome.unaccounted}
    faults = [fault for fault in read_failures(directory) if stopped_at and fault["time"] > stopped_at]
    if stopped_at is None or not faults:
        return said | {"found_s": None}
    fault, back_s = faults[0], faults[0].get("seconds")
    return said | {
        "found_s": round(fault["time"] - (back_s or 0.0) - stopped_at, 1),
        "back_s": back_s,
        **{name: fault[name] for name in ("process", "what", "error", "action")},
    }


def passed(target: str, found: dict[str, Any]) -> bool:
    """By what is said at the top of this file."""
    in_time = found["found_s"] is not None and found["found_s"] <= FOUND_S
    whole = (found["status"], found["unaccounted"]) == (0, 0)
    return in_time and (whole if target in OUTLIVED else found["status"] == 1)


def table(results: dict[str, Any]) -> str:
    """A line per process that was stopped."""
    rows = [
        [
            target,
            "–" if found["found_s"] is None else f"{found['found_s']:.0f} s",
            str(found.get("what")),
            str(found.get("action")),
            "–" if found.get("back_s") is None else f"{found['back_s']:.0f} s",
            str(found["status"]),
            "yes" if passed(target, found) else "no",
        ]
        for target, found in results.items()
    ]
    return markdown(["stopped", "found after", "as", "what was done", "back after", "status", "passed"], rows)


def main(again: Annotated[list[str] | None, typer.Argument(help="Who is stopped again.")] = None) -> None:
    """Run what is missing or named, and print the table."""
    kept = Kept(RESULTS)
    for target in (*OUTLIVED, *FATAL):
        if target not in kept.results or target in (again or ()):
            kept.add(target, stop_one(target))
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)
