"""How much of its time does a run train whose learner is killed every five minutes?

    python -m benchmarks.chaos.effective --faults 4

The demo on RLinf with `--restarts` and a checkpoint every fifth step. A minute after the first step the
learner rank gets SIGKILL, with which this attempt ends, and again every `--every` seconds; so long after the
last one the run is asked to end. A result of the same name in `effective.json` is replaced.

Stated before the first run. Measured is from the first kill to the end: as many intervals of `--every` as
there are faults, each with one fault. A step counts with the seconds that it reports if no attempt has
trained it before, and no longer than the median of all steps: the first of an attempt also fills the
pipeline. To pass, these are at least 80 % of the time (RobustRL, arXiv 2512.22492, reports that of 256 GPUs),
the command ends with status 143, as asked, and nothing of any buffer was lost at a resume.

Stated after the second run: steps vary, and cutting every one at the median takes an eighth of the time of a
run that nobody disturbs. So there is a second figure, for which only a step that takes longer than twice the
median counts for the median, as the first of an attempt does. Before the third run: `passed` is by that
figure from then on; runs before it are kept as they were judged.
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
from benchmarks.kept import Kept
from rlinf_async.lab.table import markdown
from rlinf_async.observe.run_dir import RunDir

RESULTS = Path(__file__).with_name("effective.json")
RUNS = Path("runs/chaos/effective")
VICTIM = "learner rank 0"
SAVE_EVERY = 5
FIRST_S = 60.0
LOOK_S = 0.5
DEADLINE_S = 900.0
"""Within which a process has to be there to be killed."""
TO_REACH = 0.8
Step = tuple[int, float]
"""Its number, and its seconds."""


def steps_in_order(run_dir: Path) -> list[Step]:
    """The steps of all attempts as they were reported."""
    metrics = RunDir(run_dir).metrics
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    records = [json.loads(line) for line in lines]
    return [(int(one["step"]), float(one["async/step_seconds"])) for one in records]


def effective_seconds(before: Sequence[Step], after: Sequence[Step], *, longest: float = 1.0) -> float:
    """The seconds of the steps `after` that nobody had trained `before`.

    Those that took more than `longest` medians count for one median.
    """
    usual = statistics.median(seconds for _, seconds in [*before, *after])
    furthest, total = max((step for step, _ in before), default=0), 0.0
    for step, seconds in after:
        if step > furthest:
            total, furthest = total + (seconds if seconds <= longest * usual else usual), step
    return total


def kill(process: subprocess.Popen[bytes], run_dir: Path) -> None:
    """SIGKILL for the learner rank of the attempt that goes on, once there is one.

    Raises:
        TimeoutError, RuntimeError: there is none.
    """
    give_up = time.monotonic() + DEADLINE_S
    while (pid := pid_of(process.pid, run_dir, VICTIM)) is None:
        if process.poll() is not None:
            raise RuntimeError(f"the run has ended with status {process.returncode}")
        if time.monotonic() > give_up:
            raise TimeoutError(f"there is no {VICTIM} after {DEADLINE_S:g} s")
        time.sleep(LOOK_S)
    os.kill(pid, signal.SIGKILL)


def run(directory: Path, *, faults: int, every_s: float) -> dict[str, Any]:
    """Train, and kill the learner so many times."""
    settings = [*ONE_OF_EACH, f"runner.save_interval={SAVE_EVERY}", *restarting(2 * faults)]
    command = training(directory, settings, steps=1_000_000)
    with under_way(command, directory.with_suffix(".log")) as process:
        while not steps_in_order(directory):
            if process.poll() is not None:
                raise RuntimeError(f"the run has ended with status {process.returncode}")
            time.sleep(LOOK_S)
        time.sleep(FIRST_S)
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
    """What came of a run, beside what was stated of it."""
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
        "passed": taken >= TO_REACH and status == 128 + signal.SIGTERM and bool(books) and not lost,
    }


def table(results: dict[str, Any]) -> str:
    """A line per run."""
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
    faults: Annotated[int, typer.Option(help="Deaths of the learner.")] = 4,
    every: Annotated[float, typer.Option(help="Seconds between two of them.")] = 300.0,
) -> None:
    """Run, and print the table of all runs."""
    kept = Kept(RESULTS)
    found = run(RUNS / "run", faults=faults, every_s=every)
    kept.add(f"{faults} faults, every {every:g} s, judged as steps took", found)
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)
