"""The driver, a learner rank or a channel of a run is killed at random times, and `--restarts` starts the
run again.

    python -m benchmarks.chaos.driver --kills 20

The demo on RLinf, with a checkpoint every second step. SIGKILL of the driver, with which Ray and every
worker go, of the learner, or of one of the two channels, drawn at random, at a random moment within fifteen
seconds after an attempt has trained its first step; three of them in a run. Runs that are in `driver.json`
are not repeated: whoever interrupts the command loses the run that was under way. In the first two runs
there only drivers were killed.

Stated before the first run: it has passed if the command ends with status 0, if every attempt has gone on
from the newest checkpoint that was whole when its predecessor had ended, if no more steps were repeated than
had been trained since that checkpoint, which are two and the one that was being trained, and if in the end
every step is there and no trajectory is unaccounted for.

Changed after the sixth run: there are two restarts to spare, for attempts that nobody has killed. In that
run Ray itself did not start the last attempt in time, on two cores with a load of thirty.
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
from benchmarks.kept import Kept
from rlinf_async.lab.table import markdown
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import find_newest

RESULTS = Path(__file__).with_name("driver.json")
RUNS = Path("runs/chaos/driver")
WHO = {
    "driver": ("driver",),
    "learner": ("learner rank 0",),
    "channel": ("request channel 0", "coordinator 0"),
}
"""Who is killed, and what such processes are called in the records of a run."""
KILLS = 3
"""In one run."""
SPARE = 2
"""Restarts beyond those."""
SAVE_EVERY = 2
WITHIN_S = 15.0
LOOK_S = 0.5
END_S = 0.05
DEADLINE_S = 1200.0
"""Without a new step for so long, a run counts as hung."""
RESTART = re.compile(r"restart \d+ of \d+ from (?:step (\d+)|the beginning)")


def steps_of(run_dir: Path) -> list[int]:
    """The steps that every attempt has trained, in the order in which they were reported."""
    lines = RunDir(run_dir).metrics
    text = lines.read_text() if lines.exists() else ""
    return [int(found) for found in re.findall(r'^\{"step": (\d+)', text, re.MULTILINE)]


def pid_of(supervisor: int, run_dir: Path, name: str) -> int | None:
    """A process of the attempt that goes on, by its name; None if it is not there or does not answer."""
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
    """Wait for an attempt to train a step, kill one of its processes later, and wait until it has ended.

    Returns:
        Who it was, the last step that was reported, and the newest whole checkpoint once the attempt has
        ended; None if the command has ended before.
    """
    since, metrics = time.time(), RunDir(run_dir).metrics
    while not metrics.exists() or metrics.stat().st_mtime < since:
        if supervisor.poll() is not None:
            return None
        if time.time() - since > DEADLINE_S:
            raise TimeoutError(f"no step has been trained within {DEADLINE_S:g} s")
        time.sleep(LOOK_S)
    name = draw.choice(WHO[draw.choice(list(WHO))])
    time.sleep(draw.uniform(0.0, WITHIN_S))
    driver = pid_of(supervisor.pid, run_dir, "driver")
    while (victim := pid_of(supervisor.pid, run_dir, name)) is None or driver is None:
        if supervisor.poll() is not None:
            return None
        time.sleep(LOOK_S)  # it has not answered yet
        driver = pid_of(supervisor.pid, run_dir, "driver")
    os.kill(victim, signal.SIGKILL)
    while pid_of(supervisor.pid, run_dir, "driver") == driver:
        time.sleep(END_S)
    return {"who": name, "trained": steps_of(run_dir)[-1], "newest": newest_of(run_dir)}


def newest_of(run_dir: Path) -> int:
    """The step of the newest whole checkpoint below a run directory, 0 without one."""
    parents = {folder.parent for folder in run_dir.rglob("global_step_*")}
    return max((find_newest(parent).step for parent in parents), default=0)


def run(directory: Path, *, kills: int, steps: int, seed: int) -> dict[str, Any]:
    """Train, and kill somebody so many times."""
    log = directory.with_suffix(".log")
    settings = [*ONE_OF_EACH, f"runner.save_interval={SAVE_EVERY}", *restarting(kills + SPARE)]
    command = training(directory, settings, steps=steps)
    draw, began = random.Random(seed), time.monotonic()
    deaths: list[dict[str, Any]] = []
    with under_way(command, log) as process:
        while len(deaths) < kills and (death := kill_after_a_step(process, directory, draw)):
            deaths.append(death)
        status = process.wait(steps * DEADLINE_S)
    resumed = [int(found or 0) for found in RESTART.findall(log.read_text())]
    seconds = time.monotonic() - began
    return result(directory, status, deaths, resumed, seconds, steps)


def result(
    directory: Path, status: int, deaths: list[dict[str, Any]], resumed: list[int], seconds: float, steps: int
) -> dict[str, Any]:
    """What came of a run, beside what was stated of it."""
    found = Outcome.of(directory, status=status, killed=[death["who"] for death in deaths])
    went_on = [death["newest"] for death in deaths]
    repeated = [max(0, death["trained"] - step) for death, step in zip(deaths, went_on, strict=True)]
    rest = iter(resumed)
    in_order = all(step in rest for step in went_on)  # with those between them that nobody has killed
    training = sum(one["async/step_seconds"] for one in RunDir(directory).read_metrics())
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
    """A line per run."""
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
    kills: Annotated[int, typer.Option(help="In all runs together.")] = 20,
    steps: Annotated[int, typer.Option(help="Of a run.")] = 24,
) -> None:
    """Run what is missing, and print the table."""
    kept, seed = Kept(RESULTS), 0
    while (missing := kills - sum(found["kills"] for found in kept.results.values())) > 0:
        while any(name.endswith(f"seed {seed}") for name in kept.results):
            seed += 1
        some = min(KILLS, missing)
        found = run(RUNS / f"{some}-{seed}", kills=some, steps=steps, seed=seed)
        kept.add(f"{some} kills, seed {seed}", found)
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)
