"""Kill a process that does nothing but save checkpoints at fifty random times.

    python -m benchmarks.chaos.saving

The process writes checkpoints of 84 MB (four files of weights and one of trajectories, by `write_tensors`)
with `checkpoint_folder.written_aside`, a second or two for each, keeps the newest two, and prints a line when
a checkpoint is whole. SIGKILL comes at a random time within four seconds after its start. Then the experiment
examines the folder, and the next process continues there as a resumed run does: it tidies, and begins by
writing the newest step once more. A power failure is not tried: the files of a killed process are still in
the system's memory.

Stated before the first run: the experiment has passed if after every kill
  - a newest whole checkpoint is found, no older than the last that the process has printed as whole;
  - it loads, and every number in it equals its step;
  - every other folder named `global_step_N` is whole, or is reported as skipped;
  - no unfinished folder is left after the next process has tidied.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

from benchmarks.result_store import ResultStore
from rlinf_async.lab.table import markdown
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import (
    LIST_FILE,
    UNFINISHED_NAME,
    find_newest,
    problem_of,
    prune,
    step_of,
    tidy,
    written_aside,
)
from rlinf_async.ray_runtime.checkpoints.saved_buffer import read_tensors, write_tensors

RESULTS_FILE = Path(__file__).with_name("saving.json")
RUNS_FOLDER = Path("runs/chaos")
WEIGHT_FILE_COUNT, NUMBERS_PER_FILE = 4, 5_000_000
"""Files of weights in a checkpoint, and float32 numbers in each."""
KILL_WITHIN_S = 4.0


def save_for_ever(parent: Path) -> None:
    """Save, report and prune checkpoints without end, from the newest step on."""
    torch.set_num_threads(1)
    parent.mkdir(parents=True, exist_ok=True)
    tidy(parent)
    print("tidied", *left(parent), flush=True)
    step = find_newest(parent).step or 1
    while True:
        with written_aside(parent / f"global_step_{step}", {"max_staleness": 1}) as aside:
            write(aside, step)
        print("whole", step, flush=True)
        prune(parent, 2)
        step += 1


def write(folder: Path, step: int) -> None:
    """Write a checkpoint; all of its numbers equal `step`."""
    (folder / "actor").mkdir()
    (folder / "buffer").mkdir()
    for number in range(WEIGHT_FILE_COUNT):
        write_tensors(
            folder / "actor" / f"{number}.safetensors", {"weights": _filled(step, NUMBERS_PER_FILE)}
        )
    pieces = {"actions": _filled(step, NUMBERS_PER_FILE // 5), "versions": [step]}
    write_tensors(folder / "buffer" / "0.safetensors", pieces)
    (folder / "async_state.json").write_text(f'{{"version": {step}}}\n')


def loads(folder: Path) -> bool:
    """Return True if every file of a checkpoint can be read and holds its step."""
    step = step_of(folder)
    weights = [
        read_tensors(folder / "actor" / f"{number}.safetensors") for number in range(WEIGHT_FILE_COUNT)
    ]
    pieces = read_tensors(folder / "buffer" / "0.safetensors")
    tensors = [*(held["weights"] for held in weights), pieces["actions"]]
    return pieces["versions"] == [step] and all(bool((one == step).all()) for one in tensors)


def _filled(step: int, count: int) -> torch.Tensor:
    return torch.full((count,), float(step))


def left(parent: Path) -> list[str]:
    """Name the unfinished folders among the checkpoints of `parent`."""
    found = []
    for path in sorted(parent.iterdir()):
        if match := UNFINISHED_NAME.fullmatch(path.name):
            found.append(f"{match[1]}{', listed' if (path / LIST_FILE).exists() else ''}")
    return found


def kill_one(parent: Path, after_s: float) -> dict[str, Any]:
    """Start a saving process, kill it after `after_s` seconds, and examine the checkpoints of `parent`."""
    command = [sys.executable, "-m", "benchmarks.chaos.saving", "save", str(parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None
    half = process.stdout.readline().split()[1:]
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    said = [int(line.split()[1]) for line in process.stdout.read().splitlines() if line.startswith("whole ")]
    process.wait()
    newest = find_newest(parent)
    broken = [folder for folder in parent.glob("global_step_*") if problem_of(folder) is not None]
    return {
        "left": left(parent),
        "left_after_tidying": half,
        "said": max(said, default=0),
        "newest": newest.step,
        "loads": newest.folder is not None and loads(newest.folder),
        "broken": len(broken),
        "named": len(newest.skipped),
    }


def run(parent: Path, times: int, seed: int) -> list[dict[str, Any]]:
    """Kill `times` processes one after the other; a whole checkpoint is there before the first."""
    draw = random.Random(seed)
    parent.mkdir(parents=True)
    with written_aside(parent / "global_step_1", {}) as aside:
        write(aside, 1)
    return [kill_one(parent, draw.uniform(0.0, KILL_WITHIN_S)) for _ in range(times)]


def good(death: dict[str, Any], before: int) -> bool:
    """Return True if this kill has lost no checkpoint; `before` was the newest step before it."""
    newest = death["newest"] >= max(death["said"], before)
    return bool(
        newest and death["loads"] and death["broken"] == death["named"] and not death["left_after_tidying"]
    )


def summary(deaths: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum up the kills."""
    before = [1, *(death["newest"] for death in deaths)]
    good_ones = [good(death, newest) for death, newest in zip(deaths, before, strict=False)]
    found: Counter[str] = Counter()
    for death in deaths:
        found.update(death["left"] or ["nothing half done"])
    return {
        "deaths": len(deaths),
        "checkpoints": deaths[-1]["newest"],
        "left": dict(found),
        "broken": sum(death["broken"] for death in deaths),
        "good": sum(good_ones),
        "passed": all(good_ones),
    }


def table(results: dict[str, Any]) -> str:
    rows = [
        [
            name,
            str(found["deaths"]),
            str(found["checkpoints"]),
            ", ".join(f"{count} {what}" for what, count in sorted(found["left"].items())),
            str(found["broken"]),
            "yes" if found["passed"] else "no",
        ]
        for name, found in results.items()
    ]
    heads = ["seed", "deaths", "checkpoints written", "left behind", "named but broken", "passed"]
    return markdown(heads, rows)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def save(parent: Path) -> None:
    """Save checkpoints until killed."""
    save_for_ever(parent)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    times: Annotated[int, typer.Option(help="Number of kills.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the random times of the kills.")] = 0,
) -> None:
    """Run the experiment unless its result is there, and print the table."""
    if context.invoked_subcommand:
        return
    store = ResultStore(RESULTS_FILE)
    if f"seed {seed}" not in store.results:
        RUNS_FOLDER.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=RUNS_FOLDER) as folder:
            store.add(f"seed {seed}", summary(run(Path(folder, "checkpoints"), times, seed)))
    typer.echo(table(store.results))


if __name__ == "__main__":
    app()
