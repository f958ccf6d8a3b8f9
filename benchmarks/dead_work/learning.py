"""Compare learning without dead work (`lean`) and by the synchronous loop (`off`), from the same seeds.

    python -m benchmarks.dead_work.learning

The task is PointReach on the local host: an episode ends when its point arrives, and `lean` leaves out the
rest of it. The plan is in `learning.md`. Each run is a row of `results/learning.jsonl`, and is not repeated.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning.cells import RECIPE_BY_ALGORITHM
from benchmarks.learning.statistics import compared
from benchmarks.result_store import add_row, read_rows
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import point_reach

RESULTS_FILE = Path(__file__).parent / "results" / "learning.jsonl"
PAIR_COUNT, BATCH_COUNT = 10, 30
COMPARED_MODES = ("off", "lean")
EQUIVALENCE_MARGIN, FINAL_SHARE = 0.05, 0.2
ROUNDING_SHARE = 1e-5
"""Weights count as equal up to rounding if their difference is at most this share of their norm."""


def run(algorithm: str, side: str, seed: int) -> tuple[dict[str, Any], torch.Tensor]:
    """Train; return the row of the run, and all final weights as one float64 vector."""
    settings = LocalSettings(
        algorithm=algorithm,  # type: ignore[arg-type]
        asynchrony=AsyncConfig.from_mapping({"mode": side}),
        total_envs=32,
        horizon=10,
        batches=BATCH_COUNT,
        global_batch_size=160,
        micro_batch_size=160,
        lr=1e-3,
        value_lr=3e-3,
        seed=seed,
        **RECIPE_BY_ALGORITHM[algorithm],
    )
    torch.manual_seed(seed)
    environments = point_reach(group_size=settings.group_size, seed=seed)
    result = LocalTrainer(settings, environments, GaussianPolicy).run()
    weights = torch.cat([tensor.flatten().double() for _, tensor in sorted(result.weights.items())])
    success = [metrics["env/success_once"] for metrics in result.metrics]
    skipped = [report.skipped.get("env_steps", 0.0) for report in result.reports]
    row = {
        "algorithm": algorithm,
        "side": side,
        "seed": seed,
        "success": [round(value, 5) for value in success],
        "skipped_env_steps": round(float(np.mean(skipped)), 4),
    }
    return row, weights


def pair(algorithm: str, seed: int) -> None:
    """Run both modes from one seed, and store their rows with the relative distance of their weights."""
    (off, of_off), (lean, of_lean) = (run(algorithm, side, seed) for side in COMPARED_MODES)
    apart = float((of_lean - of_off).norm() / of_off.norm())
    for row in (off, lean):
        add_row(RESULTS_FILE, row | {"weights_apart": apart})


def verdicts() -> str:
    """Return lines with the equivalence tests of both algorithms, and a direct comparison of the runs."""
    lines = []
    for algorithm in RECIPE_BY_ALGORITHM:
        found = {
            (row["side"], row["seed"]): row
            for row in read_rows(RESULTS_FILE)
            if row["algorithm"] == algorithm
        }
        seeds = [seed for seed in range(PAIR_COUNT) if ("off", seed) in found]
        curves = {side: [found[side, seed]["success"] for seed in seeds] for side in COMPARED_MODES}
        tests = compared(curves["off"], curves["lean"], margin=EQUIVALENCE_MARGIN, final_share=FINAL_SHARE)
        for name, test in tests.items():
            lines.append(
                f"{algorithm}, {name}: {test.verdict}; off {test.sync_mean:.4f}, lean {test.full_mean:.4f}, "
                f"difference {test.difference:+.5f} [{test.ci_low:+.5f}, {test.ci_high:+.5f}], "
                f"{test.pairs} pairs"
            )
        same = sum(off == lean for off, lean in zip(curves["off"], curves["lean"], strict=True))
        apart = [found["off", seed]["weights_apart"] for seed in seeds]
        skipped = [found["lean", seed]["skipped_env_steps"] for seed in seeds]
        rounded = sum(each <= ROUNDING_SHARE for each in apart)
        lines.append(
            f"{algorithm}: {same} of {len(seeds)} curves are equal; weights are apart by "
            f"{min(apart):.1e} to {max(apart):.1e} of their norm, {rounded} "
            f"pairs by rounding; lean has left out {np.mean(skipped):.0%} of the steps"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", help="only print the verdicts")
    if not parser.parse_args().report:
        torch.set_num_threads(1)
        for seed, algorithm in product(range(PAIR_COUNT), RECIPE_BY_ALGORITHM):
            if not any(
                row["algorithm"] == algorithm and row["seed"] == seed for row in read_rows(RESULTS_FILE)
            ):
                pair(algorithm, seed)
    print(verdicts())


if __name__ == "__main__":
    main()
