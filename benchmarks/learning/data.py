"""The earlier experiments: their runs, the results that there are, and the pairs they form."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
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

LEVELS: dict[str, dict[str, Any]] = {
    "off": {"mode": "off"},
    "train": {"mode": "train"},
    "rollout": {"mode": "rollout"},
    "streamer": {"mode": "streamer"},
    "streamer-running": {"mode": "streamer", "advanced": {"normalization": "running"}},
    "full": {"mode": "full"},
    "full-running": {"mode": "full", "advanced": {"normalization": "running"}},
}
"""PPO streams only where it is told to: with eight epochs, `auto` waits for the batch."""


def equivalence(host: Literal["local", "rlinf"], seeds: int) -> list[Cell]:
    """Synchronous and `full`, seed by seed, so that pairs share their starts and run side by side."""
    return [
        _cell(host, task, algorithm, label, LEVELS[label], BATCHES, seed)
        for seed in range(seeds)
        for task, algorithm in SETTINGS
        for label in ("off", "full")
    ]


def staleness(seeds: int) -> list[Cell]:
    """A fixed lag, reproducibly, by correction; with a lag of 0 there is nothing to correct."""
    return [
        _cell("local", PRESS, "ppo", label, block, BATCHES, seed)
        for seed in range(seeds)
        for label, block in _lags().items()
    ]


def levels(seeds: int) -> list[Cell]:
    """Each level by itself, with PPO and with GRPO."""
    return [
        _cell("local", PRESS, algorithm, label, block, BATCHES, seed)
        for seed in range(seeds)
        for algorithm in ("ppo", "grpo")
        for label, block in LEVELS.items()
        if algorithm == "ppo" or not label.endswith("running")
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
    batches: int,
    seed: int,
) -> Cell:
    return Cell(
        host=host,
        task=task,
        algorithm=algorithm,
        label=label,
        asynchrony=block,
        batches=batches,
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

    def curves(self, *, host: str, task: str, algorithm: str, label: str, batches: int) -> dict[int, Curve]:
        """Curves by seed, in order of seeds."""
        wanted = (host, task, algorithm, label, batches)
        curves = {
            cell.seed: curve
            for cell, curve in self.runs
            if (cell.host, cell.task, cell.algorithm, cell.label, cell.batches) == wanted
        }
        return dict(sorted(curves.items()))


def load() -> Results:
    """Read the raw folder; what is still being written has another ending."""
    stored = [json.loads(path.read_text()) for path in sorted(cells.RAW.glob("*.json"))]
    return Results(tuple((Cell(**one["cell"]), Curve(**one["curve"])) for one in stored))


def missing(
    experiment: Callable[[int], list[Cell]], results: Results, asks: Callable[[Cell], bool] = lambda _: True
) -> list[str]:
    """Names of the runs that an experiment lacks, up to the highest seed that has any.

    `asks` says which runs count for that; an experiment that borrows runs from another leaves them out.
    With no run at all, what is missing is one seed.
    """
    stored = {cell.name for cell, _ in results.runs}
    seeds = [cell.seed for cell in experiment(MOST_SEEDS) if cell.name in stored and asks(cell)]
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


def comparisons(results: Results, settings: Iterable[tuple[str, str]], batches: int) -> list[Comparison]:
    """Synchronous with full, for each setting and host that has a pair, and for both hosts together.

    In "both" each pair is of one host. A seed names the same start on either host, so that its two pairs
    count as one, by their mean.
    """
    rows: list[Comparison] = []
    for task, algorithm in settings:
        hosts: dict[str, tuple[dict[int, tuple[Curve, Curve]], ...]] = {}
        for host in ("local", "rlinf"):
            sync, full = (
                results.curves(host=host, task=task, algorithm=algorithm, label=label, batches=batches)
                for label in ("off", "full")
            )
            if pairs := paired(sync, full):
                hosts[host] = (pairs,)
        if len(hosts) > 1:
            hosts["both"] = hosts["local"] + hosts["rlinf"]
        rows += [compared(*pairs, task=task, algorithm=algorithm, host=host) for host, pairs in hosts.items()]
    return rows


def on_press(results: Results, algorithm: str, label: str) -> dict[int, Curve]:
    """Curves by seed of the experiments that take one level or one lag by itself."""
    return results.curves(host="local", task=PRESS, algorithm=algorithm, label=label, batches=BATCHES)


def host_pairs(results: Results) -> list[tuple[Comparison, str]]:
    """Local with RLinf, for each setting and label that both have a seed of."""
    pairs_of_hosts: list[tuple[Comparison, str]] = []
    for task, algorithm in SETTINGS:
        for label in ("off", "full"):
            local, rlinf = (
                results.curves(host=host, task=task, algorithm=algorithm, label=label, batches=BATCHES)
                for host in ("local", "rlinf")
            )
            if pairs := paired(local, rlinf):
                pairs_of_hosts.append((compared(pairs, task=task, algorithm=algorithm, host="both"), label))
    return pairs_of_hosts
