"""Stop one process of a run (SIGSTOP), and measure when the run notices and how it reacts.

    python -m benchmarks.chaos.silence
    python -m benchmarks.chaos.silence simulator

There is a run for each kind of process: the demo with two env workers and two inference ranks, and the
default of every deadline. To pass, the run reports the stopped process by name within two minutes. A stopped
env worker, inference rank or simulator is replaced, and the run ends with status 0 and a ledger that
balances; a stopped learner rank or channel ends the run with status 1. A run that is in `silence.json` is
repeated only if it is named on the command line.
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

from benchmarks.chaos.runs import DEMO_BY_HOST, Outcome, training
from benchmarks.chaos.victims import processes, step_of, victims
from benchmarks.result_store import ResultStore
from rlinf_async.lab.process import OWN_CLUSTER, run_command
from rlinf_async.lab.table import markdown
from rlinf_async.observe.reading.faults import read_faults

RESULTS_FILE = Path(__file__).with_name("silence.json")
RUNS_FOLDER = Path("runs/chaos-silence")
STEP_COUNT = 12
FIRST_STEP = 3
DEADLINE_S = 600.0
DETECTION_LIMIT_S = 120.0
"""A run has to report its stopped process within this time."""
LOOK_INTERVAL_S = 0.2
REPLACEABLE_PROCESSES = ("env worker 1", "inference rank 1", "simulator")
ESSENTIAL_PROCESSES = ("learner rank 0", "request channel 0", "coordinator 0")


class Stopper(threading.Thread):
    """Stops the process `target` of a run after step `FIRST_STEP`; `at` is the time of day of the stop."""

    def __init__(self, run_dir: Path, target: str) -> None:
        super().__init__(daemon=True)
        self._run_dir, self._target = run_dir, target
        self._over = threading.Event()
        self.at: float | None = None

    def run(self) -> None:
        while not self._over.wait(LOOK_INTERVAL_S):
            pid = pid_of(self._run_dir, self._target)
            if step_of(self._run_dir) >= FIRST_STEP and pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    self.at = time.time()
                    return

    def end(self) -> None:
        """Give up waiting; no process is stopped after this."""
        self._over.set()
        self.join()


def pid_of(run_dir: Path, target: str) -> int | None:
    """Return the pid of a process of a run by its name; for `simulator`, the pid of the first simulator."""
    if target == "simulator":
        return next((victim.pid for victim in victims(run_dir) if victim.kind == target), None)
    said = processes(run_dir).get(target) or {}
    return said.get("pid")


def stop_one(target: str) -> dict[str, Any]:
    """Train, stop `target`, and return the reaction of the run."""
    directory = RUNS_FOLDER / target.replace(" ", "-")
    command = training(directory, DEMO_BY_HOST["rlinf"].settings, steps=STEP_COUNT)
    stopper = Stopper(directory, target)
    stopper.start()
    try:
        log = directory.with_suffix(".log")
        status = run_command(command, log, environment=OWN_CLUSTER, deadline_s=DEADLINE_S)
    finally:
        stopper.end()
    return said_of(directory, status=status, stopped_at=stopper.at)


def said_of(directory: Path, *, status: int, stopped_at: float | None) -> dict[str, Any]:
    """Return the first fault that the run reports after `stopped_at`, and how the run ended."""
    outcome = Outcome.of(directory, status=status, killed=[])
    said: dict[str, Any] = {"status": status, "steps": outcome.steps, "unaccounted": outcome.unaccounted}
    faults = [fault for fault in read_faults(directory) if stopped_at and fault.time > stopped_at]
    if stopped_at is None or not faults:
        return said | {"found_s": None}
    fault, back_s = faults[0], faults[0].seconds
    return said | {
        "found_s": round(fault.time - (back_s or 0.0) - stopped_at, 1),
        "back_s": back_s,
        **{name: getattr(fault, name) for name in ("process", "what", "error", "action")},
    }


def passed(target: str, found: dict[str, Any]) -> bool:
    """Return True if the run meets the criteria at the top of this file."""
    in_time = found["found_s"] is not None and found["found_s"] <= DETECTION_LIMIT_S
    whole = (found["status"], found["unaccounted"]) == (0, 0)
    return in_time and (whole if target in REPLACEABLE_PROCESSES else found["status"] == 1)


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per stopped process."""
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


def main(again: Annotated[list[str] | None, typer.Argument(help="Processes to stop again.")] = None) -> None:
    """Run the missing and the named runs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for target in (*REPLACEABLE_PROCESSES, *ESSENTIAL_PROCESSES):
        if target not in store.results or target in (again or ()):
            store.add(target, stop_one(target))
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
