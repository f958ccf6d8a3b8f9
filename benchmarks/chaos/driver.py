"""Kill the driver, the learner or a channel of a run at random times, and let `--restarts` start the run
again.

    python -m benchmarks.chaos.driver --kills 20

The run is the demo on RLinf with a checkpoint every second step. Three times in a run, at a random moment
within fifteen seconds after an attempt has trained its first step, SIGKILL hits one process, drawn at random:
the driver (Ray and every worker end with it), the learner, or one of the two channels. Runs that are in
`driver.json` are not repeated; an interrupted command loses only the run that was under way. In the first two
runs of that file, only drivers were killed.

Stated before the first run: a run has passed if the command ends with status 0; every attempt resumes from
the newest checkpoint that was whole when the previous attempt ended; the steps repeated are no more than
those trained since that checkpoint, at most two and the one in training; and in the end every step is there
and no trajectory is unaccounted for.

Changed after the sixth run: there are two spare restarts, for attempts that end without a kill. In that run
Ray itself did not start the last attempt in time, on two cores with a load of thirty.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.chaos.runs import ONE_OF_EACH, Outcome, restarting, training, under_way
from benchmarks.chaos.victims import processes
from benchmarks.chaos.watch import family
from benchmarks.result_store import ResultStore
from rlinf_async.lab.table import markdown
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest

RESULTS_FILE = Path(__file__).with_name("driver.json")
RUNS_FOLDER = Path("runs/chaos/driver")
VICTIM_PROCESSES = {
    "driver": ("driver",),
    "learner": ("learner rank 0",),
    "channel": ("request channel 0", "coordinator 0"),
}
"""The kinds of processes to kill, each with the names of its processes in the records of a run."""
KILLS_PER_RUN = 3
SPARE_RESTARTS = 2
"""Restarts of a run beyond one for each kill."""
SAVE_EVERY = 2
KILL_WITHIN_S = 15.0
LOOK_INTERVAL_S = 0.5
END_POLL_S = 0.05
STEP_DEADLINE_S = 1200.0
"""A run without a new step for this long counts as hung."""
RESTART_LINE = re.compile(r"restart \d+ of \d+ from (?:step (\d+)|the beginning)")


def steps_of(run_dir: Path) -> list[int]:
    """Return the steps that all attempts have trained, in the order of their reports."""
    lines = RunDir(run_dir).metrics
    text = lines.read_text() if lines.exists() else ""
    return [int(found) for found in re.findall(r'^\{"step": (\d+)', text, re.MULTILINE)]


def pid_of(supervisor: int, run_dir: Path, name: str) -> int | None:
    """Return the pid of the process `name` of the current attempt; None if it does not exist or answer.

    `supervisor` is the pid of the `--restarts` command, the parent of the driver.
    """
    below = [pid for pid in family(supervisor) if pid != supervisor]
    if name != "driver":
        pid = processes(run_dir).get(name, {}).get("pid")
        return pid if pid in below else None
    for pid in below:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(supervisor):
                return pid
    return None


def kill_after_a_step(
    supervisor: subprocess.Popen[bytes], run_dir: Path, draw: random.Random
) -> dict[str, Any] | None:
    """Wait until an attempt has trained a step, kill one of its processes, and wait until the attempt ends.

    Returns:
        The killed process, the last reported step, and the newest whole checkpoint after the end of the
        attempt; None if the command ends before the kill.
    """
    since, metrics = time.time(), RunDir(run_dir).metrics
    while not metrics.exists() or metrics.stat().st_mtime < since:
        if supervisor.poll() is not None:
            return None
        if time.time() - since > STEP_DEADLINE_S:
            raise TimeoutError(f"no step has been trained within {STEP_DEADLINE_S:g} s")
        time.sleep(LOOK_INTERVAL_S)
    name = draw.choice(VICTIM_PROCESSES[draw.choice(list(VICTIM_PROCESSES))])
    time.sleep(draw.uniform(0.0, KILL_WITHIN_S))
    driver = pid_of(supervisor.pid, run_dir, "driver")
    while (victim := pid_of(supervisor.pid, run_dir, name)) is None or driver is None:
        if supervisor.poll() is not None:
            return None
        time.sleep(LOOK_INTERVAL_S)  # the process has not answered yet
        driver = pid_of(supervisor.pid, run_dir, "driver")
    os.kill(victim, signal.SIGKILL)
    while pid_of(supervisor.pid, run_dir, "driver") == driver:
        time.sleep(END_POLL_S)
    return {"who": name, "trained": steps_of(run_dir)[-1], "newest": newest_of(run_dir)}


def newest_of(run_dir: Path) -> int:
    """Return the step of the newest whole checkpoint below a run directory; 0 if there is none."""
    parents = {folder.parent for folder in run_dir.rglob("global_step_*")}
    return max((find_newest(parent).step for parent in parents), default=0)


def run(directory: Path, *, kills: int, steps: int, seed: int) -> dict[str, Any]:
    """Train in `directory`, kill `kills` processes, and return the result of the run."""
    log = directory.with_suffix(".log")
    settings = [*ONE_OF_EACH, f"runner.save_interval={SAVE_EVERY}", *restarting(kills + SPARE_RESTARTS)]
    command = training(directory, settings, steps=steps)
    draw, began = random.Random(seed), time.monotonic()
    deaths: list[dict[str, Any]] = []
    with under_way(command, log) as process:
        while len(deaths) < kills and (death := kill_after_a_step(process, directory, draw)):
            deaths.append(death)
        status = process.wait(steps * STEP_DEADLINE_S)
    resumed = [int(found or 0) for found in RESTART_LINE.findall(log.read_text())]
    seconds = time.monotonic() - began
    return result(directory, status, deaths, resumed, seconds, steps)


def result(
    directory: Path, status: int, deaths: list[dict[str, Any]], resumed: list[int], seconds: float, steps: int
) -> dict[str, Any]:
    """Return the result of a run, with its verdict by the criteria at the top of this file."""
    found = Outcome.of(directory, status=status, killed=[death["who"] for death in deaths])
    went_on = [death["newest"] for death in deaths]
    repeated = [max(0, death["trained"] - step) for death, step in zip(deaths, went_on, strict=True)]
    rest = iter(resumed)
    in_order = all(step in rest for step in went_on)  # restarts without a kill may stand between them
    training = sum(one["async/step_seconds"] for one in RunReader(directory).metrics())
    return {
        "status": status,
        "kills": len(deaths),
        "who": [death["who"] for death in deaths],
        "trained_before": [death["trained"] for death in deaths],
        "newest_whole": went_on,
        "resumed_from": resumed,
        "repeated": repeated,
        "failed_by_themselves": len(resumed) - len(deaths),
        "steps": found.steps,
        "unaccounted": found.unaccounted,
        "training_share": round(training / seconds, 3),
        "passed": status == 0
        and in_order
        and all(count <= SAVE_EVERY + 1 for count in repeated)
        and found.steps == steps
        and found.unaccounted == 0,
    }


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per run."""
    names = ["status", "kills", "trained_before", "resumed_from", "repeated", "steps", "unaccounted"]
    rows = [
        [
            run,
            ", ".join(found.get("who", ["driver"] * found["kills"])),
            *(str(found[name]) for name in names),
            "yes" if found["passed"] else "no",
        ]
        for run, found in results.items()
    ]
    heads = ["run", "who", "status", "kills", "trained before", "resumed from", "repeated", "steps"]
    return markdown([*heads, "unaccounted", "passed"], rows)


def main(
    kills: Annotated[int, typer.Option(help="Kills in all runs together.")] = 20,
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 24,
) -> None:
    """Run the missing runs, and print the table."""
    store, seed = ResultStore(RESULTS_FILE), 0
    while (missing := kills - sum(found["kills"] for found in store.results.values())) > 0:
        while any(name.endswith(f"seed {seed}") for name in store.results):
            seed += 1
        some = min(KILLS_PER_RUN, missing)
        found = run(RUNS_FOLDER / f"{some}-{seed}", kills=some, steps=steps, seed=seed)
        store.add(f"{some} kills, seed {seed}", found)
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
