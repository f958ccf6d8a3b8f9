"""Measure the share of time that a run spends on new steps while its learner is killed every five minutes.

    python -m benchmarks.chaos.effective --faults 4

The run is the demo on RLinf with `--restarts` and a checkpoint every fifth step. A minute after the first
step the learner rank gets SIGKILL, which ends the attempt; further kills follow every `--every` seconds.
`--every` seconds after the last kill, SIGTERM asks the run to end. A result of the same name in
`effective.json` is replaced.

Stated before the first run: the measured time is that from the first kill to the end, as many intervals of
`--every` as there are faults, with one fault each. A step that no earlier attempt has trained counts for its
reported seconds, but at most for the median of all steps: the first step of an attempt also fills the
pipeline. To pass, the counted seconds are at least 80 % of the time (the share that RobustRL, arXiv
2512.22492, reports for 256 GPUs), the command ends with status 143, and no resume has lost a part of a
buffer.

Stated after the second run: the seconds of steps vary, and cutting every step at the median takes an eighth
of the time of an undisturbed run. So there is a second figure: only a step that takes more than twice the
median, as the first of an attempt does, counts for the median. Stated before the third run: `passed` is by
the second figure from then on; earlier runs keep their verdicts.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.chaos.driver import newest_of, pid_of
from benchmarks.chaos.runs import ONE_OF_EACH, restarting, training, under_way
from benchmarks.result_store import ResultStore
from rlinf_async.lab.table import markdown
from rlinf_async.observe.run_dir import RunDir

RESULTS_FILE = Path(__file__).with_name("effective.json")
RUNS_FOLDER = Path("runs/chaos/effective")
VICTIM_PROCESS = "learner rank 0"
SAVE_EVERY = 5
FIRST_KILL_AFTER_S = 60.0
LOOK_INTERVAL_S = 0.5
DEADLINE_S = 900.0
"""The learner rank has to be there to be killed within this time."""
LEAST_EFFECTIVE_SHARE = 0.8
Step = tuple[int, float]
"""Number and seconds of a step."""


def steps_in_order(run_dir: Path) -> list[Step]:
    """Return the steps of all attempts, in the order of their reports."""
    metrics = RunDir(run_dir).metrics
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    records = [json.loads(line) for line in lines]
    return [(int(one["step"]), float(one["async/step_seconds"])) for one in records]


def effective_seconds(before: Sequence[Step], after: Sequence[Step], *, longest: float = 1.0) -> float:
    """Return the seconds of those steps of `after` that no earlier attempt has trained.

    A step that took more than `longest` medians counts for one median.
    """
    usual = statistics.median(seconds for _, seconds in [*before, *after])
    furthest, total = max((step for step, _ in before), default=0), 0.0
    for step, seconds in after:
        if step > furthest:
            total, furthest = total + (seconds if seconds <= longest * usual else usual), step
    return total


def kill(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """Wait for the learner rank of the current attempt, and send it SIGKILL.

    Raises:
        TimeoutError: no learner rank within `DEADLINE_S`.
        RuntimeError: the run has ended.
    """
    give_up = time.monotonic() + DEADLINE_S
    while (pid := pid_of(process.pid, run_dir, VICTIM_PROCESS)) is None:
        if process.poll() is not None:
            raise RuntimeError(f"the run has ended with status {process.returncode}")
        if time.monotonic() > give_up:
            raise TimeoutError(f"there is no {VICTIM_PROCESS} after {DEADLINE_S:g} s")
        time.sleep(LOOK_INTERVAL_S)
    os.kill(pid, signal.SIGKILL)


def run(directory: Path, *, faults: int, every_s: float) -> dict[str, Any]:
    """Train in `directory`, kill the learner `faults` times, and return the result of the run."""
    settings = [*ONE_OF_EACH, f"runner.save_interval={SAVE_EVERY}", *restarting(2 * faults)]
    command = training(directory, settings, steps=1_000_000)
    with under_way(command, directory.with_suffix(".log")) as process:
        while not steps_in_order(directory):
            if process.poll() is not None:
                raise RuntimeError(f"the run has ended with status {process.returncode}")
            time.sleep(LOOK_INTERVAL_S)
        time.sleep(FIRST_KILL_AFTER_S)
        began, before = time.monotonic(), steps_in_order(directory)
        for number in range(faults):
            kill(process, directory)
            time.sleep(max(0.0, began + (number + 1) * every_s - time.monotonic()))
        seconds, reported = time.monotonic() - began, steps_in_order(directory)
        process.send_signal(signal.SIGTERM)
        status = process.wait(DEADLINE_S)
    return result(directory, status, faults, seconds, before, reported[len(before) :])


def result(
    directory: Path, status: int, faults: int, seconds: float, before: Sequence[Step], after: Sequence[Step]
) -> dict[str, Any]:
    """Return the result of a run, with its verdict by the criteria at the top of this file."""
    share = effective_seconds(before, after) / seconds
    taken = effective_seconds(before, after, longest=2.0) / seconds
    books = {}
    for state in sorted(directory.rglob(f"global_step_{newest_of(directory)}/async_state.json")):
        books = json.loads(state.read_text())
    lost = books.get("refused", {}).get("lost at resume", 0)
    return {
        "status": status,
        "faults": faults,
        "seconds": round(seconds, 1),
        "steps": len({step for step, _ in after}),
        "repeated": len(after) - len({step for step, _ in after} - {step for step, _ in before}),
        "usual_step_s": round(statistics.median(one for _, one in after), 3),
        "effective": round(share, 3),
        "effective_as_taken": round(taken, 3),
        "lost_at_resume": lost,
        "passed": taken >= LEAST_EFFECTIVE_SHARE
        and status == 128 + signal.SIGTERM
        and bool(books)
        and not lost,
    }


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per run."""
    names = ["status", "faults", "seconds", "steps", "repeated", "usual_step_s"]
    rows = [
        [
            run,
            *(str(found[name]) for name in names),
            *(f"{found[name]:.0%}" if name in found else "-" for name in ("effective", "effective_as_taken")),
            "yes" if found["passed"] else "no",
        ]
        for run, found in results.items()
    ]
    heads = ["run", "status", "faults", "seconds", "steps", "repeated", "s a step", "effective"]
    return markdown([*heads, "as steps took", "passed"], rows)


def main(
    faults: Annotated[int, typer.Option(help="Kills of the learner.")] = 4,
    every: Annotated[float, typer.Option(help="Seconds between two kills.")] = 300.0,
) -> None:
    """Run, and print the table of all runs."""
    store = ResultStore(RESULTS_FILE)
    found = run(RUNS_FOLDER / "run", faults=faults, every_s=every)
    store.add(f"{faults} faults, every {every:g} s, judged as steps took", found)
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
