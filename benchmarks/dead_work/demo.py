"""Measure the seconds of the demo with and without dead work, by turns.

    python -m benchmarks.dead_work.demo benchmarks/dead_work/results/demo.json

Each turn runs `metaworld_ppo_mlp` to its end with `async.mode=full`, and then the same with
`async.skip=false`, which does all the dead work. The seconds are those of the global steps, without the start
of Ray and of the simulators. In the last ten steps most episodes succeed, and end before the horizon.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from benchmarks.result_store import ResultStore
from rlinf_async.lab.process import OWN_CLUSTER, last_words, run_command

CONFIG_NAME = "metaworld_ppo_mlp"
OVERRIDES_BY_WAY = {"full": ("async.mode=full",), "full, all work": ("async.mode=full", "async.skip=false")}
LAST_STEPS = 10
DEADLINE_S = 3600.0
SKIPPED_SHARE_KEYS = tuple(f"async/skipped/{kind}" for kind in ("env_steps", "decisions", "samples"))


def run(overrides: tuple[str, ...], *, seed: int) -> dict[str, Any]:
    """Train the demo; return the figures of `summed_up`.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rlinf_async.cli", "train", "--config-name", CONFIG_NAME]
        seeds = [f"actor.seed={1234 + seed}"]
        status = run_command(
            [*command, *overrides, *seeds, f"runner.logger.log_path={folder}"],
            Path(folder) / "output",
            environment=OWN_CLUSTER,
            deadline_s=DEADLINE_S,
        )
        if status:
            raise RuntimeError(last_words(Path(folder) / "output"))
        (metrics,) = Path(folder).rglob("metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return summed_up([line for line in lines if "async/step_seconds" in line])


def summed_up(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the seconds of all steps and of the last `LAST_STEPS`, and means of success, busy shares and
    skipped shares over the last `LAST_STEPS`.
    """
    last = steps[-LAST_STEPS:]
    seconds = [step["async/step_seconds"] for step in steps]
    return {
        "steps": len(steps),
        "seconds": round(sum(seconds), 2),
        "last_seconds": round(sum(seconds[-LAST_STEPS:]), 2),
        "success": round(fmean(step["env/success_once"] for step in last), 3),
        "busiest": {
            part: round(fmean(step.get(f"async/busiest/{part}", 0.0) for step in last), 3)
            for part in ("env", "inference", "learner")
        },
        **{key: round(fmean(step.get(key, 0.0) for step in last), 3) for key in SKIPPED_SHARE_KEYS},
    }


def main(path: Path, turns: Annotated[int, typer.Option(help="Runs of each side, by turns.")] = 6) -> None:
    """Run the runs that PATH lacks, and print the ratios."""
    store = ResultStore(path)
    for turn in range(turns):
        for way, overrides in OVERRIDES_BY_WAY.items():
            name = f"{way} #{turn + 1}"
            if name not in store.results:
                store.add(name, run(overrides, seed=turn))
                typer.echo(f"{name}: {store.results[name]}")
        one, other = (store.results[f"{way} #{turn + 1}"] for way in OVERRIDES_BY_WAY)
        for key in ("seconds", "last_seconds"):
            typer.echo(f"turn {turn + 1}, {key}: {one[key] / other[key]:.2f}")


if __name__ == "__main__":
    typer.run(main)
