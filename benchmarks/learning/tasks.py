"""Does `async.advanced.balance=tasks` learn what `exact` learns: `python -m benchmarks.learning.tasks`.

Stated before any run that counts. The preregistered settings `ppo-1-lag1` and `grpo-1-lag1`
(preregistration.yaml: 64 points, half of them easy and fast, half hard and slow, all three levels, virtual
clock) with `balance: tasks`, ten seeds each, against the stored runs of the same seeds with `balance:
exact` and with every level off. As there: area and final success, differences as shares of the synchronous
mean, two one-sided paired t-tests at 5 % for a margin of 5 %. The lag is reported and is no condition: with
`tasks` no shard runs ahead of the others, so that samples are younger. One pilot, seed 100 of PPO: lag 0.56
(exact 0.89), 23.9 virtual seconds (37.5), success over all batches 0.674 (0.675).

Added when the toy had been read, and before any run of it: real physics, `world-ppo-1-lag1-spread` and
`world-ppo-4-lag1` (two Meta-World tasks, of which one is fast), by the same test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning import cells, statistics
from benchmarks.learning.preregistered_run import run
from benchmarks.learning.preregistration import Setting, Side, load
from benchmarks.learning.statistics import Tost

BASE_SETTINGS = ("ppo-1-lag1", "grpo-1-lag1", "world-ppo-1-lag1-spread", "world-ppo-4-lag1")
RESULT_FILE = cells.RESULTS_FOLDER / "tasks.json"


@dataclass(frozen=True, kw_only=True)
class TakingOn(Setting):
    """A preregistered setting with `balance: tasks`; its results have a folder of their own."""

    def path(self, side: Side, seed: int) -> Path:
        if side == "synchronous":
            return super().path(side, seed)
        return cells.RESULTS_FOLDER / "tasks" / f"{self.name}-seed{seed}.json"


def setting_of(base: str) -> tuple[Setting, Setting]:
    """Return a preregistered setting of the local host, and the same with `balance: tasks`."""
    exact = load().setting(base)
    own = {item.name: getattr(exact, item.name) for item in fields(Setting)}
    return exact, TakingOn(**{**own, "name": f"{base}-tasks", "balance": "tasks"})


def compared(base: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the row of a setting, from the runs of `seeds`, which all need results."""
    exact, tasks = setting_of(base)
    measured = {name: load().statistic[name] for name in ("margin", "final_share")}
    sync = list(exact.success("synchronous", seeds).values())
    runs = {one.balance: [one.result("asynchronous", seed) or {} for seed in seeds] for one in (exact, tasks)}
    curves = {"sync": sync, **{name: [one["success"] for one in each] for name, each in runs.items()}}
    tests = {
        other: statistics.compared(curves[other], curves["tasks"], unit=sync, **measured)
        for other in ("exact", "sync")
    }
    return {
        "setting": base,
        "seeds": list(seeds),
        **{
            measure: {f"tasks - {other}": _words(found[measure]) for other, found in tests.items()}
            for measure in statistics.MEASURE_NAMES
        },
        **{
            fact: {name: round(_mean(each, fact), 3) for name, each in runs.items()}
            for fact in ("mean_lag", "virtual_seconds")
        },
    }


def _words(test: Tost) -> dict[str, Any]:
    interval = [None if bound is None else round(bound, 4) for bound in (test.ci_low, test.ci_high)]
    return {"difference": round(test.difference, 4), "interval": interval, "verdict": test.verdict}


def _mean(runs: Sequence[Mapping[str, Any]], fact: str) -> float:
    """Return the mean of `fact` over runs: the lag after the first two batches, or the final virtual time."""
    values = [one[fact][-1] if fact == "virtual_seconds" else np.mean(one[fact][2:]) for one in runs]
    return float(np.mean(values))


def main() -> None:
    """Make the missing runs, setting by setting, and write the results."""
    rows = []
    for base in BASE_SETTINGS:
        _, setting = setting_of(base)
        for seed in setting.seeds:
            if not setting.path("asynchronous", seed).exists():
                run(setting, "asynchronous", seed)
                print(setting.name, seed, flush=True)
        rows.append(compared(base, setting.seeds))
        RESULT_FILE.write_text(json.dumps(rows, indent=1) + "\n")
        print(json.dumps(rows[-1], indent=1))


if __name__ == "__main__":
    main()
