"""Train on environments that raise in one of ten steps, and return a NaN reward in one of a hundred.

    python -m benchmarks.chaos.faulty

The task is PointReach on the local host, one environment in each of eight shards, all levels on. The first
rollout of a shard has no faults: environments that have never worked get one restart, whatever the budget.
Runs that are in `faulty.json` are not repeated.

Stated before the first run. The run with each budget has passed if
  - with restarts to spare, it trains every batch and its ledger balances: one rollout refused as `env failed`
    for each step that raised, one refused as `not finite` for each NaN reward, a line in failures.jsonl for
    each, none in flight at the end, none staler than the bound, all weights finite;
  - with the default budget, it ends by itself once a shard has failed for the eleventh time within 600 s, its
    error says so and quotes the first failure, and no shard has had more than ten restarts;
  - without restarts, it ends with the error of the environment itself.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.result_store import ResultStore
from rlinf_async.config.checked import checked_config
from rlinf_async.hosts.local import LocalResult, LocalSettings, LocalTrainer
from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from rlinf_async.lab.table import markdown
from rlinf_async.observe.reading.faults import read_faults

POLICY = partial(GaussianPolicy, hidden=16)
RESULTS_FILE = Path(__file__).with_name("faulty.json")
SHARD_COUNT, HORIZON_DECISIONS, BATCH_COUNT = 8, 5, 30
ERROR_CHANCE, NAN_CHANCE = 0.1, 0.01
RESTART_BUDGETS: dict[str, dict[str, Any]] = {
    # A short window: the wait before a restart doubles with every restart within the window.
    "restarts to spare": {"survive": {"env_restarts": 1000}, "advanced": {"window_s": 5}},
    "the default budget": {},
    "no restarts": {"survive": {"env_restarts": 0}},
}
DEFAULT_ENV_RESTARTS = 10
GIVEN_UP_ERROR = re.compile(
    r"the environments of shard \d+ have failed 11 times within 600 s, more than "
    r"async\.survive\.env_restarts=10 allows; the first time: "
    r"(ConnectionError: the simulator|ShardFailure: the environments have given numbers)"
)
INJECTED_ERROR_TEXT = "the simulator has lost its connection"


@dataclass
class Injected:
    """The injected faults of all shards."""

    counts: Counter[str] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    """Steps that each shard has begun, by the number of its first environment."""


class Faulty(PointReach):
    """PointReach with steps that raise, or return NaN rewards, at random."""

    def __init__(self, size: int, *, first: int, injected: Injected, chance: np.random.Generator) -> None:
        super().__init__(size, first=first)
        self._first, self._injected, self._chance = first, injected, chance

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._injected.steps[self._first] += 1
        drawn = self._chance.random() if self._injected.steps[self._first] > HORIZON_DECISIONS else 1.0
        if drawn < ERROR_CHANCE:
            self._injected.counts["env failed"] += 1
            raise ConnectionError(INJECTED_ERROR_TEXT)
        states, rewards, ended = super().decide(actions)
        if drawn < ERROR_CHANCE + NAN_CHANCE:
            self._injected.counts["not finite"] += 1
            rewards[:] = np.nan
        return states, rewards, ended


def faulty(injected: Injected, seed: int) -> EnvFactory:
    """Return a factory of `Faulty` shards; a rebuilt shard continues the random draws of its predecessor."""
    chances = {first: np.random.default_rng((seed, first)) for first in range(SHARD_COUNT)}

    def build(first: int, size: int) -> Faulty:
        return Faulty(size, first=first, injected=injected, chance=chances[first])

    return build


def settings(budgets: dict[str, Any], batches: int) -> LocalSettings:
    block = {"mode": "full", "rollout": {"shards": SHARD_COUNT}, **budgets}
    return LocalSettings(
        asynchrony=checked_config(block),
        total_envs=SHARD_COUNT,
        horizon=HORIZON_DECISIONS,
        batches=batches,
        global_batch_size=SHARD_COUNT * HORIZON_DECISIONS,
        micro_batch_size=SHARD_COUNT * HORIZON_DECISIONS,
    )


def run(budgets: dict[str, Any], *, batches: int = BATCH_COUNT, seed: int = 0) -> dict[str, Any]:
    """Train; return the injected faults, the run's own counts, and the error that has ended the run."""
    torch.set_num_threads(1)
    injected, began = Injected(), time.monotonic()
    ours = settings(budgets, batches)
    error: str | None = None
    result: LocalResult | None = None
    with TemporaryDirectory() as folder:
        try:
            result = LocalTrainer(ours, faulty(injected, seed), POLICY, run_dir=Path(folder)).run()
        except (RuntimeError, ConnectionError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        faults = read_faults(Path(folder))
    outlived = Counter(fault.shard for fault in faults if fault.seconds is not None)
    found = {
        "error": error,
        "seconds": round(time.monotonic() - began, 1),
        "injected": dict(injected.counts),
        "faults": dict(Counter(fault.what for fault in faults)),
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
    """Return True if the run with the budget `name` meets the criteria at the top of this file."""
    if name == "restarts to spare":
        ended_well = found["error"] is None and found["batches"] == BATCH_COUNT
        counted = found.get("refused") == found["injected"] == found["faults"]
        complete = found.get("trained") == BATCH_COUNT * SHARD_COUNT and found.get("in_flight") == 0
        return bool(ended_well and counted and complete and found["stale"] <= 0 and found["finite"])
    if name == "the default budget":
        given_up = GIVEN_UP_ERROR.search(found["error"] or "") is not None
        return given_up and found["most_restarts_of_a_shard"] == DEFAULT_ENV_RESTARTS
    named = "async.survive.env_restarts=0" in (found["error"] or "")
    return named and INJECTED_ERROR_TEXT in found["error"] and found["most_restarts_of_a_shard"] == 0


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per run."""
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


def main(report: Annotated[bool, typer.Option("--report", help="Only print the table.")] = False) -> None:
    """Run the missing runs, and print the table."""
    store = ResultStore(RESULTS_FILE)
    for name, budgets in RESTART_BUDGETS.items():
        if not report and name not in store.results:
            store.add(name, run(budgets))
    typer.echo(table(store.results))


if __name__ == "__main__":
    typer.run(main)
