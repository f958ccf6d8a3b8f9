"""A process that does nothing but save checkpoints is killed at fifty random times.

    python -m benchmarks.chaos.saving

It writes a checkpoint of 84 MB (four files of weights and one of trajectories, by `write_tensors`) into
`checkpoint_folder.written_aside`, which takes it a second or two, keeps two, and says of each when it is
whole. SIGKILL comes at a random time within four seconds of its first; then everything that it has left is
looked at, and the next process goes on from there, as a run that is resumed does: it tidies, and begins by
writing the newest step once more. What a machine that loses power leaves is not tried: the files of a killed
process are still in the system's memory.

Stated before the first run: it has passed if after every death
  - a newest whole checkpoint is found, and it is no older than the last that was said to be whole;
  - it loads, and every number in it is of its step;
  - every other folder named `global_step_N` is whole, or is named in a sentence;
  - nothing half written is left once the next process has tidied.
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

from benchmarks.kept import Kept
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

RESULTS = Path(__file__).with_name("saving.json")
RUNS = Path("runs/chaos")
FILES, NUMBERS = 4, 5_000_000
"""Of weights: as many files of so many numbers of four bytes."""
WITHIN_S = 4.0


def save_for_ever(parent: Path) -> None:
    """Save, prune and say so, again and again, from the newest step on."""
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
    """A checkpoint all of whose numbers are its step."""
    (folder / "actor").mkdir()
    (folder / "buffer").mkdir()
    for number in range(FILES):
        write_tensors(folder / "actor" / f"{number}.safetensors", {"weights": _filled(step, NUMBERS)})
    pieces = {"actions": _filled(step, NUMBERS // 5), "versions": [step]}
    write_tensors(folder / "buffer" / "0.safetensors", pieces)
    (folder / "async_state.json").write_text(f'{{"version": {step}}}\n')


def loads(folder: Path) -> bool:
    """Whether every file of a checkpoint can be read, and holds its step."""
    step = step_of(folder)
    weights = [read_tensors(folder / "actor" / f"{number}.safetensors") for number in range(FILES)]
    pieces = read_tensors(folder / "buffer" / "0.safetensors")
    tensors = [*(held["weights"] for held in weights), pieces["actions"]]
    return pieces["versions"] == [step] and all(bool((one == step).all()) for one in tensors)


def _filled(step: int, count: int) -> torch.Tensor:
    return torch.full((count,), float(step))


def left(parent: Path) -> list[str]:
    """What is half done in a folder of checkpoints, in words."""
    found = []
    for path in sorted(parent.iterdir()):
        if match := UNFINISHED_NAME.fullmatch(path.name):
            found.append(f"{match[1]}{', listed' if (path / LIST_FILE).exists() else ''}")
    return found


def kill_one(parent: Path, after_s: float) -> dict[str, Any]:
    """Let a process save, kill it, and look at what is there."""
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
    """Kill so many, with a whole checkpoint there before the first, so that there is something to lose."""
    draw = random.Random(seed)
    parent.mkdir(parents=True)
    with written_aside(parent / "global_step_1", {}) as aside:
        write(aside, 1)
    return [kill_one(parent, draw.uniform(0.0, WITHIN_S)) for _ in range(times)]


def good(death: dict[str, Any], before: int) -> bool:
    """Whether nothing was lost in a death before which `before` was the newest step."""
    newest = death["newest"] >= max(death["said"], before)
    return bool(
        newest and death["loads"] and death["broken"] == death["named"] and not death["left_after_tidying"]
    )


def summary(deaths: list[dict[str, Any]]) -> dict[str, Any]:
    """The deaths in numbers."""
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
    """What is killed."""
    save_for_ever(parent)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    times: Annotated[int, typer.Option(help="That a process is killed.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the times at which.")] = 0,
) -> None:
    """Run what is missing, and print the table."""
    if context.invoked_subcommand:
        return
    kept = Kept(RESULTS)
    if f"seed {seed}" not in kept.results:
        RUNS.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=RUNS) as folder:
            kept.add(f"seed {seed}", summary(run(Path(folder, "checkpoints"), times, seed)))
    typer.echo(table(kept.results))


if __name__ == "__main__":
    app()
