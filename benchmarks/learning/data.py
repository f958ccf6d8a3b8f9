"""The earlier experiments: their runs, the existing results, and pairs of runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from benchmarks.learning import cells
from benchmarks.learning.cells import Cell, Curve
from benchmarks.learning.statistics import Tost, area_under_curve, tost_paired

PRESS_TASK, REACH_TASK, DRAWER_TASK = "button-press-topdown-v3", "reach-v3", "drawer-close-v3"

TASKS_AND_ALGORITHMS: tuple[tuple[str, Literal["ppo", "grpo"]], ...] = (
    (PRESS_TASK, "ppo"),
    (REACH_TASK, "ppo"),
    (DRAWER_TASK, "ppo"),
    (PRESS_TASK, "grpo"),
)
"""Tasks and algorithms of the comparison of `full` with the synchronous loop."""

BATCH_COUNT = 30

STALENESS_LAGS = (0, 1, 2, 4, 8)
CORRECTION_NAMES = ("none", "decoupled", "tis")


def equivalence(host: Literal["local", "rlinf"], seeds: int) -> list[Cell]:
    """Return the synchronous and the `full` runs, seed by seed, so that a pair shares its start and runs
    together.
    """
    return [
        _cell(host, task, algorithm, label, {"mode": label}, seed)
        for seed in range(seeds)
        for task, algorithm in TASKS_AND_ALGORITHMS
        for label in ("off", "full")
    ]


def staleness(seeds: int) -> list[Cell]:
    """Return deterministic runs of every fixed lag under every correction; lag 0 has one run without
    correction.
    """
    return [
        _cell("local", PRESS_TASK, "ppo", label, block, seed)
        for seed in range(seeds)
        for label, block in _lags().items()
    ]


def _lags() -> dict[str, dict[str, Any]]:
    blocks: dict[str, dict[str, Any]] = {"off": {"mode": "off"}}
    for lag in STALENESS_LAGS[1:]:
        for correction in CORRECTION_NAMES:
            train = {"max_staleness": lag, "correction": correction}
            blocks[f"lag{lag}-{correction}"] = {
                "mode": "train",
                "deterministic": True,
                "train": train,
                "advanced": {"accept_bias": correction == "none"},
            }
    return blocks


def _cell(
    host: Literal["local", "rlinf"],
    task: str,
    algorithm: Literal["ppo", "grpo"],
    label: str,
    block: dict[str, Any],
    seed: int,
) -> Cell:
    return Cell(
        host=host,
        task=task,
        algorithm=algorithm,
        label=label,
        asynchrony=block,
        batches=BATCH_COUNT,
        seed=seed,
    )


EQUIVALENCE_MARGIN = 0.10
"""Largest difference of equivalent means, as a share of the synchronous mean; stated before the first run."""

HOST_NAMES = {"local": "local", "rlinf": "RLinf", "both": "both"}

SUCCESS_LEVEL = 0.80
"""Success rate of the measure "time to success"."""

MOST_SEEDS = 100
"""`missing` looks for results up to this number of seeds."""


@dataclass(frozen=True)
class Results:
    """All runs with a result."""

    runs: tuple[tuple[Cell, Curve], ...]

    def curves(self, *, host: str, task: str, algorithm: str, label: str) -> dict[int, Curve]:
        """Return the curves by seed, in the order of seeds."""
        wanted = (host, task, algorithm, label)
        curves = {
            cell.seed: curve
            for cell, curve in self.runs
            if (cell.host, cell.task, cell.algorithm, cell.label) == wanted
        }
        return dict(sorted(curves.items()))


def load() -> Results:
    """Read the raw folder; files still being written have another ending, and are skipped."""
    stored = [json.loads(path.read_text()) for path in sorted(cells.RAW_FOLDER.glob("*.json"))]
    return Results(tuple((Cell(**one["cell"]), Curve(**one["curve"])) for one in stored))


def missing(experiment: Callable[[int], list[Cell]], results: Results) -> list[str]:
    """Return the names of an experiment's missing runs, up to the highest seed with a result.

    Without any result, the runs of the first seed are missing.
    """
    stored = {cell.name for cell, _ in results.runs}
    seeds = [cell.seed for cell in experiment(MOST_SEEDS) if cell.name in stored]
    return [cell.name for cell in experiment(max(seeds, default=0) + 1) if cell.name not in stored]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Pairs of runs of one setting; a pair shares seed and start, and its first run is the reference."""

    task: str
    algorithm: str
    host: str
    pairs: tuple[tuple[Curve, Curve], ...]
    seeds: tuple[int, ...]
    """The seed of each pair. Pairs of the same seed are not independent, as they share their start."""

    @cached_property
    def tost(self) -> Tost:
        """The test of the areas under the curves, with one value per seed; the margin is the share
        `EQUIVALENCE_MARGIN` of the reference's mean.
        """
        sync, full = ([self._area(seed, side) for seed in dict.fromkeys(self.seeds)] for side in (0, 1))
        return tost_paired(sync, full, EQUIVALENCE_MARGIN * sum(sync) / len(sync))

    def _area(self, seed: int, side: int) -> float:
        curves = [pair[side] for pair, its in zip(self.pairs, self.seeds, strict=True) if its == seed]
        return sum(map(area_under_curve, curves)) / len(curves)

    def reduced(self, measure: Callable[[Curve], Any], middle: Callable[[list[Any]], Any]) -> list[Any]:
        """Return `measure` of reference and other runs, each reduced over the pairs by `middle`."""
        return [middle([measure(pair[side]) for pair in self.pairs]) for side in (0, 1)]

    def as_row(self) -> dict[str, Any]:
        """Return the row of equivalence.json."""
        tost = self.tost
        return {
            "task": self.task,
            "algorithm": self.algorithm,
            "host": self.host,
            "seeds": tost.pairs,
            "sync_mean": round(tost.sync_mean, 6),
            "full_mean": round(tost.full_mean, 6),
            "ci_low": None if tost.ci_low is None else round(tost.ci_low, 6),
            "ci_high": None if tost.ci_high is None else round(tost.ci_high, 6),
            "margin": round(tost.margin, 6),
            "equivalent": tost.equivalent,
        }


def paired(reference: dict[int, Curve], other: dict[int, Curve]) -> dict[int, tuple[Curve, Curve]]:
    """Return the pairs of curves of the seeds that both sides have."""
    return {seed: (reference[seed], other[seed]) for seed in reference if seed in other}


def compared(*groups: dict[int, tuple[Curve, Curve]], task: str, algorithm: str, host: str) -> Comparison:
    """Return the comparison over all pairs of all groups."""
    pairs = [(seed, pair) for group in groups for seed, pair in group.items()]
    return Comparison(
        task=task,
        algorithm=algorithm,
        host=host,
        pairs=tuple(pair for _, pair in pairs),
        seeds=tuple(seed for seed, _ in pairs),
    )


def comparisons(results: Results) -> list[Comparison]:
    """Compare `full` with synchronous runs, for each setting and host with a pair, and for both hosts.

    In "both", each pair is of one host. A seed has the same start on both hosts, so that its two pairs count
    as one, by their mean.
    """
    rows: list[Comparison] = []
    for task, algorithm in TASKS_AND_ALGORITHMS:
        hosts: dict[str, tuple[dict[int, tuple[Curve, Curve]], ...]] = {}
        for host in ("local", "rlinf"):
            sync, full = (
                results.curves(host=host, task=task, algorithm=algorithm, label=label)
                for label in ("off", "full")
            )
            if pairs := paired(sync, full):
                hosts[host] = (pairs,)
        if len(hosts) > 1:
            hosts["both"] = hosts["local"] + hosts["rlinf"]
        rows += [compared(*pairs, task=task, algorithm=algorithm, host=host) for host, pairs in hosts.items()]
    return rows


def on_press(results: Results, label: str) -> dict[int, Curve]:
    """Return the curves of `staleness` with this label, by seed."""
    return results.curves(host="local", task=PRESS_TASK, algorithm="ppo", label=label)
