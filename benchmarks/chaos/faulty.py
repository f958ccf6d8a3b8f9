"""A run whose environments raise in one of ten steps and give a reward that is no number in one of a hundred.

    python -m benchmarks.chaos.faulty

The points of the local host, one environment in each of eight shards, all levels on. Nothing is wrong in the
first rollout of a shard: environments that have never worked are given one restart, whatever the budget. Runs
that are in `faulty.json` are not repeated.

Stated before the first run: it has passed if
  - with restarts to spare the run trains every batch, and its books add up: as many rollouts are refused as
    `env failed` as steps have raised, as many as `not finite` as rewards were none, each has its line in
    failures.jsonl, none is in flight at the end, none was staler than the bound, all weights are finite;
  - with the budget that is the default the run ends by itself once a shard has failed for the eleventh time
    within 600 s, with a sentence that says so and the first error, and no shard has been given more than ten
    restarts;
  - without any restarts it ends with the error of the environment itself.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.kept import Kept
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalResult, LocalSettings, LocalTrainer, PointReach
from rlinf_async.hosts.local.envs import EnvFactory
from rlinf_async.lab.table import markdown
from rlinf_async.observe.failures import read_failures

RESULTS = Path(__file__).with_name("faulty.json")
SHARDS, HORIZON, BATCHES = 8, 5, 30
RAISES, NANS = 0.1, 0.01
BUDGETS: dict[str, dict[str, Any]] = {
    # In a short window, because the wait before a restart doubles with every one that is in it.
    "restarts to spare": {"survive": {"env_restarts": 1000}, "advanced": {"window_s": 5}},
    "the default budget": {},
    "no restarts": {"survive": {"env_restarts": 0}},
}
DEFAULT_MOST = 10
GIVEN_UP = re.compile(
    r"the environments of shard \d+ have failed 11 times within 600 s, more than "
    r"async\.survive\.env_restarts=10 allows; the first time: "
    r"(ConnectionError: the simulator|ShardFailure: the environments have given numbers)"
)
SAID = "the simulator has lost its connection"


@dataclass
class Injected:
    """What has gone wrong on purpose, in all shards together."""

    counts: Counter[str] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    """That each shard has begun, by its first environment."""


class Faulty(PointReach):
    """Points whose steps raise, or reward with no number, at random."""

    def __init__(self, size: int, *, first: int, injected: Injected, chance: np.random.Generator) -> None:
        super().__init__(size, first=first)
        self._first, self._injected, self._chance = first, injected, chance

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._injected.steps[self._first] += 1
        drawn = self._chance.random() if self._injected.steps[self._first] > HORIZON else 1.0
        if drawn < RAISES:
            self._injected.counts["env failed"] += 1
            raise ConnectionError(SAID)
        states, rewards, ended = super().decide(actions)
        if drawn < RAISES + NANS:
            self._injected.counts["not finite"] += 1
            rewards[:] = np.nan
        return states, rewards, ended


def faulty(injected: Injected, seed: int) -> EnvFactory:
    """Shards of `Faulty`; what is built anew goes on drawing where the one before has stopped."""
    chances = {first: np.random.default_rng((seed, first)) for first in range(SHARDS)}

    def build(first: int, size: int) -> Faulty:
        return Faulty(size, first=first, injected=injected, chance=chances[first])

    return build


def settings(budgets: dict[str, Any], batches: int) -> LocalSettings:
    block = {"mode": "full", "rollout": {"shards": SHARDS}, **budgets}
    return LocalSettings(
        asynchrony=AsyncConfig.from_mapping(block),
        total_envs=SHARDS,
        horizon=HORIZON,
        batches=batches,
        global_batch_size=SHARDS * HORIZON,
        micro_batch_size=SHARDS * HORIZON,
        hidden=16,
    )


def run(budgets: dict[str, Any], *, batches: int = BATCHES, seed: int = 0) -> dict[str, Any]:
    """Train, and say what was injected, what the run has counted, and how it has ended."""
    torch.set_num_threads(1)
    injected, began = Injected(), time.monotonic()
    ours = settings(budgets, batches)
    error: str | None = None
    result: LocalResult | None = None
    with TemporaryDirectory() as folder:
        try:
            result = LocalTrainer(ours, faulty(injected, seed), run_dir=Path(folder)).run()
        except (RuntimeError, ConnectionError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        faults = read_failures(Path(folder))
    outlived = Counter(fault["shard"] for fault in faults if "seconds" in fault)
    found = {
        "error": error,
        "seconds": round(time.monotonic() - began, 1),
        "injected": dict(injected.counts),
        "faults": dict(Counter(fault["what"] for fault in faults)),
        "most_restarts_of_a_shard": max(outlived.values(), default=0),
    }
    return found | (_books(result, ours) if result is not None else {})


def _books(result: LocalResult, ours: LocalSettings) -> dict[str, Any]:
    ledger = result.ledger
    return {
        "batches": len(result.reports),
        "trained": ledger.trained,
        "refused": dict(ledger.refused),
        "in_flight": ledger.in_flight,
        "stale": max(report.staleness.high for report in result.reports) - ours.asynchrony.max_staleness,
        "finite": all(bool(torch.isfinite(tensor).all()) for tensor in result.weights.values()),
    }


def passed(name: str, found: dict[str, Any]) -> bool:
    """Whether a run has come to what was stated of it."""
    if name == "restarts to spare":
        ended_well = found["error"] is None and found["batches"] == BATCHES
        counted = found.get("refused") == found["injected"] == found["faults"]
        complete = found.get("trained") == BATCHES * SHARDS and found.get("in_flight") == 0
        return bool(ended_well and counted and complete and found["stale"] <= 0 and found["finite"])
    if name == "the default budget":
        given_up = GIVEN_UP.search(found["error"] or "") is not None
        return given_up and found["most_restarts_of_a_shard"] == DEFAULT_MOST
    named = "async.survive.env_restarts=0 has none built anew" in (found["error"] or "")
    return named and SAID in found["error"] and found["most_restarts_of_a_shard"] == 0


def table(results: dict[str, Any]) -> str:
    """A line per run."""
    rows = [
        [
            name,
            f"all {found['batches']} batches" if found["error"] is None else found["error"],
            _words(found["injected"]),
            _words(found["refused"]) if "refused" in found else "–",
            str(found["most_restarts_of_a_shard"]),
            "yes" if passed(name, found) else "no",
        ]
        for name, found in results.items()
    ]
    heads = [
        "budget",
        "came to",
        "injected",
        "refused in the books",
        "restarts of a shard, at most",
        "passed",
    ]
    return markdown(heads, rows)


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def main(report: Annotated[bool, typer.Option("--report", help="Run nothing.")] = False) -> None:
    """Run what is missing, and print the table."""
    kept = Kept(RESULTS)
    for name, budgets in BUDGETS.items():
        if not report and name not in kept.results:
            kept.add(name, run(budgets))
    typer.echo(table(kept.results))


if __name__ == "__main__":
    typer.run(main)
