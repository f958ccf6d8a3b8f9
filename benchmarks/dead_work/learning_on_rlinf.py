"""Compare learning by `lean` and by `off` on RLinf's own workers and policy, from the same seeds.

    python -m benchmarks.dead_work.learning_on_rlinf --minutes 40

All runs share a Ray cluster, as starting one takes longer than a run. RLinf's MLP draws the noise of all rows
of a request at once, so that the modes draw different numbers once `lean` leaves rows out: curves can be
equal in distribution only. The plan is in `learning.md`. Each run is a row of `results/learning-rlinf.jsonl`,
and is not repeated.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import ray
from torch import multiprocessing

from benchmarks.dead_work.learning import COMPARED_MODES, FINAL_SHARE
from benchmarks.learning.cells import RECIPE_BY_ALGORITHM
from benchmarks.learning.statistics import area, compared
from benchmarks.result_store import add_row, read_rows
from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.hooks import prepare, say_once
from rlinf_async.hosts.rlinf.train import train
from rlinf_async.lab.bench.sides import SIDES_BY_HOST
from rlinf_async.lab.sweep.steps import read_scalars
from rlinf_async.observe.events import SUCCESS_METRIC
from rlinf_async.plugin import register

RESULTS_FILE = Path(__file__).parent / "results" / "learning-rlinf.jsonl"
RUNS_FOLDER = Path("runs")
PAIR_COUNT, BATCH_COUNT = 10, 20
FEWEST_PAIRS = 5
EQUIVALENCE_MARGIN = 0.1
REHEARSAL_SEED = 100

POINT_REACH_OVERRIDES = (
    "~warm_start",
    *(f"env.{part}.env_class=point_reach" for part in ("train", "eval")),
    *("env.train.total_num_envs=128", "env.train.max_episode_steps=10"),
    *("actor.model.obs_dim=2", "actor.model.action_dim=2"),
    *("actor.micro_batch_size=640", "actor.global_batch_size=640"),
    *("actor.optim.lr=1e-3", "actor.optim.value_lr=3e-3"),
)


def run(algorithm: str, side: str, seed: int) -> dict[str, Any]:
    """Train `BATCH_COUNT` batches in this process and its Ray cluster; return the row of the run.

    Raises:
        RuntimeError: the run lacks steps.
    """
    directory = (RUNS_FOLDER / f"learning-{algorithm}-{side}-{seed}").resolve()
    shutil.rmtree(directory, ignore_errors=True)  # or logs of an earlier attempt would be read as well
    overrides = [
        *POINT_REACH_OVERRIDES,
        *(f"algorithm.{name}={value}" for name, value in RECIPE_BY_ALGORITHM[algorithm].items()),
        *SIDES_BY_HOST["rlinf"].run(directory=directory, steps=BATCH_COUNT, seed=seed),
        f"async.mode={side}",
    ]
    began_s = time.monotonic()
    cfg = compose_config(f"metaworld_{algorithm}_mlp", overrides, None)
    say_once(prepare(cfg), cfg)
    train(cfg)
    end_workers()
    scalars = read_scalars(directory)
    success = list(scalars.get(SUCCESS_METRIC, {}).values())
    if len(success) != BATCH_COUNT:
        raise RuntimeError(f"{directory.name} has logged {len(success)} of {BATCH_COUNT} steps")
    skipped = scalars.get("async/skipped/decisions", {0: 0.0})
    return {
        "algorithm": algorithm,
        "side": side,
        "seed": seed,
        "success": [round(value, 5) for value in success],
        "skipped_decisions": round(float(np.mean(list(skipped.values()))), 4),
        "seconds": round(time.monotonic() - began_s, 1),
    }


def end_workers() -> None:
    """End all actors but RLinf's managers: RLinf's own runner leaves its workers behind, with their names."""
    for name in ray.util.list_named_actors():
        if not name.endswith("Manager"):
            with suppress(ValueError):  # an actor that has ended in the meantime
                ray.kill(ray.get_actor(name))


def missing_pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield algorithm, seed and the sides that `rows` lack, in the order of the plan: by seed, then PPO and
    GRPO.
    """
    made = {(row["algorithm"], row["side"], row["seed"]) for row in rows}
    for seed, algorithm in product(range(PAIR_COUNT), RECIPE_BY_ALGORITHM):
        sides = [side for side in COMPARED_MODES if (algorithm, side, seed) not in made]
        if sides:
            yield algorithm, seed, sides


def spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation, in words."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} +- {deviation:.3f}"


def verdicts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return lines with the equivalence tests of both algorithms over the whole pairs in `rows`."""
    lines = []
    for algorithm in RECIPE_BY_ALGORITHM:
        found = {(row["side"], row["seed"]): row for row in rows if row["algorithm"] == algorithm}
        seeds = [seed for seed in range(PAIR_COUNT) if all((side, seed) in found for side in COMPARED_MODES)]
        if not seeds:
            lines.append(f"{algorithm}: no whole pair")
            continue
        curves = {side: [found[side, seed]["success"] for seed in seeds] for side in COMPARED_MODES}
        tests = compared(curves["off"], curves["lean"], margin=EQUIVALENCE_MARGIN, final_share=FINAL_SHARE)
        for name, test in tests.items():
            interval = "" if test.ci_low is None else f" [{test.ci_low:+.4f}, {test.ci_high:+.4f}]"
            verdict = test.verdict if len(seeds) >= FEWEST_PAIRS else "too few pairs"
            lines.append(f"{algorithm}, {name}: {verdict}; lean - off {test.difference:+.4f}{interval}")
        same = sum(off == lean for off, lean in zip(curves["off"], curves["lean"], strict=True))
        skipped = np.mean([found["lean", seed]["skipped_decisions"] for seed in seeds])
        areas = ", ".join(f"{side} {spread(list(map(area, curves[side])))}" for side in COMPARED_MODES)
        lines.append(
            f"{algorithm}: {len(seeds)} pairs, {same} of equal curves; area {areas}; lean has left out "
            f"{skipped:.0%} of decisions"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only print the verdicts")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no pair after these")
    parser.add_argument("--rehearse", action="store_true", help="print rows of another seed, store none")
    options = parser.parse_args()
    if not options.report:
        multiprocessing.set_start_method("spawn", force=True)
        register()
    if options.rehearse:
        for algorithm, side in product(RECIPE_BY_ALGORITHM, COMPARED_MODES):
            print(run(algorithm, side, REHEARSAL_SEED), flush=True)
        return
    end_s = time.monotonic() + 60.0 * options.minutes
    if not options.report:
        for algorithm, seed, sides in missing_pairs(read_rows(RESULTS_FILE)):
            if time.monotonic() > end_s:
                break
            for side in sides:
                add_row(RESULTS_FILE, run(algorithm, side, seed))
    print(verdicts(read_rows(RESULTS_FILE)))


if __name__ == "__main__":
    main()
