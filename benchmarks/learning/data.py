"""The earlier experiments: their runs, the results that there are, and the pairs they form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from benchmarks.learning import cells
from benchmarks.learning.cells import Cell, Curve
from benchmarks.learning.statistics import Tost, area_under_curve, tost_paired

PRESS, REACH, DRAWER = "button-press-topdown-v3", "reach-v3", "drawer-close-v3"

SETTINGS: tuple[tuple[str, Literal["ppo", "grpo"]], ...] = (
    (PRESS, "ppo"),
    (REACH, "ppo"),
    (DRAWER, "ppo"),
    (PRESS, "grpo"),
)
"""Tasks and algorithms on which `full` is compared with the synchronous loop."""

BATCHES = 30

STALENESS = (0, 1, 2, 4, 8)
CORRECTIONS = ("none", "decoupled", "tis")


def equivalence(host: Literal["local", "rlinf"], seeds: int) -> list[Cell]:
    """Synchronous and `full`, seed by seed, so that pairs share their starts and run side by side."""
    return [
        _cell(host, task, algorithm, label, {"mode": label}, seed)
        for seed in range(seeds)
        for task, algorithm in SETTINGS
        for label in ("off", "full")
    ]


def staleness(seeds: int) -> list[Cell]:
    """A fixed lag, reproducibly, by correction; with a lag of 0 there is nothing to correct."""
    return [
        _cell("local", PRESS, "ppo", label, block, seed)
        for seed in range(seeds)
        for label, block in _lags().items()
    ]


def _lags() -> dict[str, dict[str, Any]]:
    blocks: dict[str, dict[str, Any]] = {"off": {"mode": "off"}}
    for lag in STALENESS[1:]:
        for correction in CORRECTIONS:
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
        batches=BATCHES,
        seed=seed,
    )


MARGIN = 0.10
"""Share of the synchronous mean by which two means may differ and count as equivalent.

It was stated before the experiments were run.
"""

HOST_NAMES = {"local": "local", "rlinf": "RLinf", "both": "both"}

LEVEL = 0.80
"""The success that a run is timed to."""

MOST_SEEDS = 100
"""Seeds above it are not looked for."""


@dataclass(frozen=True)
class Results:
    """Every run with a result."""

    runs: tuple[tuple[Cell, Curve], ...]

    def curves(self, *, host: str, task: str, algorithm: str, label: str) -> dict[int, Curve]:
        """Curves by seed, in order of seeds."""
        wanted = (host, task, algorithm, label)
        curves = {
            cell.seed: curve
            for cell, curve in self.runs
            if (cell.host, cell.task, cell.algorithm, cell.label) == wanted
        }
        return dict(sorted(curves.items()))


def load() -> Results:
    """Read the raw folder; what is still being written has another ending."""
    stored = [json.loads(path.read_text()) for path in sorted(cells.RAW.glob("*.json"))]
    return Results(tuple((Cell(**one["cell"]), Curve(**one["curve"])) for one in stored))


def missing(experiment: Callable[[int], list[Cell]], results: Results) -> list[str]:
    """Names of the runs that an experiment lacks, up to the highest seed that has any.

    With no run at all, what is missing is one seed.
    """
    stored = {cell.name for cell, _ in results.runs}
    seeds = [cell.seed for cell in experiment(MOST_SEEDS) if cell.name in stored]
    return [cell.name for cell in experiment(max(seeds, default=0) + 1) if cell.name not in stored]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs of one setting in pairs that share seed and start: a reference, and the other."""

    task: str
    algorithm: str
    host: str
    pairs: tuple[tuple[Curve, Curve], ...]
    seeds: tuple[int, ...]
    """Of each pair. Pairs of one seed are no independent evidence: they share their start."""

    @cached_property
    def tost(self) -> Tost:
        """Of the areas under the curves, one value a seed; the margin is `MARGIN` of the reference's mean."""
        sync, full = ([self._area(seed, side) for seed in dict.fromkeys(self.seeds)] for side in (0, 1))
        return tost_paired(sync, full, MARGIN * sum(sync) / len(sync))

    def _area(self, seed: int, side: int) -> float:
        curves = [pair[side] for pair, its in zip(self.pairs, self.seeds, strict=True) if its == seed]
        return sum(map(area_under_curve, curves)) / len(curves)

    def reduced(self, measure: Callable[[Curve], Any], middle: Callable[[list[Any]], Any]) -> list[Any]:
        """A measure of both sides, reduced over the pairs by `middle`."""
        return [middle([measure(pair[side]) for pair in self.pairs]) for side in (0, 1)]

    def as_row(self) -> dict[str, Any]:
        """The row of equivalence.json."""
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
    """The curves of the seeds that both sides have."""
    return {seed: (reference[seed], other[seed]) for seed in reference if seed in other}


def compared(*groups: dict[int, tuple[Curve, Curve]], task: str, algorithm: str, host: str) -> Comparison:
    """Of all pairs of all groups."""
    pairs = [(seed, pair) for group in groups for seed, pair in group.items()]
    return Comparison(
        task=task,
        algorithm=algorithm,
        host=host,
        pairs=tuple(pair for _, pair in pairs),
        seeds=tuple(seed for seed, _ in pairs),
    )


def comparisons(results: Results) -> list[Comparison]:
    """Synchronous with full, for each setting and host that has a pair, and for both hosts together.

    In "both" each pair is of one host. A seed names the same start on either host, so that its two pairs
    count as one, by their mean.
    """
    rows: list[Comparison] = []
    for task, algorithm in SETTINGS:
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
    """Curves by seed of the experiment that takes one lag by itself."""
    return results.curves(host="local", task=PRESS, algorithm="ppo", label=label)
