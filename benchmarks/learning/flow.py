"""Compare importance weights for a policy that matches flows: `nice python -m benchmarks.learning.flow`.

What follows was written down, and committed, before the first run that counts.

Question. Log-probabilities of pi0 are of one of its K denoise steps. Does it learn more under a lag when
the importance weight makes up for the others (flow-weight.md beside this)?

Runs. The toy of 64 points (`few`, actions of 2 numbers) or 256 (`many`, chunks of 5 moves, 10 numbers),
half of them easy, cloned by flow matching to 30 to 40 % success; `flow_policy.py` with K = 4 and RLinf's
noise of 0.5; PPO, one epoch, four optimizer steps a batch, 48 batches; level 1 alone with a fixed lag of 0,
1, 2 or 4 (`async.deterministic`, virtual clock). Arms at every lag but 0, on the same starts and the same
goals:

    none     weight 1, clipped around the policy that acted (`correction: none`)
    w        the ratio of the scored step, as this package had it, and RLinf has it (`decoupled`)
    new      1 + K (w - 1), not below 0, no bound above
    capped   the same, at most 2: what the package does
    power    w^K, at most 2

Measure. Area above the start: the mean success of the training episodes over all batches, less that of the
first batch, which is the same for all runs of a seed. Differences are paired by seed, as shares of the mean
area above the start of the runs without a lag.

Primary test. `capped` minus `w`, the mean over lags 1, 2 and 4 of each seed: a two-sided paired t-test, for
`few` and for `many`, Holm over the two at 5 %. Rule: `capped` stays what the package does unless it is
significantly worse in one of the two; then it goes back to `w`. If it is significantly better in one and
not worse in the other, the page says that it learns more; if neither, it says so, and that the reason for
it is the theory alone.

Secondary, with 90 % intervals and without a verdict: every arm against `w` at every lag; equivalent where
the interval is within 5 %.

Seeds 0 to 29, by power: with a deviation of paired differences as large as in the pilots' areas (about 8 %
of the area above the start) 30 seeds show a difference of 4 % with 80 % probability. Runs are made seed by
seed, all arms of one before the next; where time runs out, the seeds of which all runs are there are
reported, and their number.

Pilots, of seeds 100 to 102, none of which counts: `few` at lag 0 with rates 5e-4, 1e-3, 2e-3; chunks of 14
moves at lag 0, which did not learn in 64 batches of 64 points at any rate, hence chunks of 5; `many` at lag
0 with 64 and 256 points and rates 1e-3, 2e-3; `none` and what is now `capped` at lag 1 once each with 2e-3
(`few`; areas 0.654 and 0.625), and with chunks of 14.

Outcome, written down afterwards. `capped` is significantly worse in both, so that the package has `w` again,
as before; `capped` is what it did when this was planned. Since then arms bring their weights with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from benchmarks.learning import cells, tables
from benchmarks.learning.campaign import by_seed, complete, origin
from benchmarks.learning.flow_policy import DENOISE_STEPS, FEW_TOY, MANY_TOY, FlowPolicy
from benchmarks.learning.points import PointsStart, Toy, points_start
from benchmarks.learning.preregistration import OPTIMIZER_STEPS
from benchmarks.learning.statistics import above_start, holm, tost_paired
from benchmarks.learning.virtual_host import ServiceTimes, train
from rlinf_async.config.checked import checked_config
from rlinf_async.core.scores import WHOLE, Scored
from rlinf_async.hosts.local import LocalSettings

ROWS_FILE = cells.RESULTS_FOLDER / "flow.jsonl"
PLANNED_SEEDS = range(30)
LAG_VERSIONS = (1, 2, 4)
POINT_RADII = (0.15, 0.06)
HORIZON_DECISIONS, HIDDEN_UNITS, BATCH_COUNT = 10, 64, 48
EQUIVALENCE_MARGIN, TEST_LEVEL = 0.05, 0.05
SERVICE_TIMES = ServiceTimes(
    slowest_decision=0.1, speeds=((1.0, 1.0),), jitter=0.0, inference=0.005, sample=0.0005
)


@dataclass(frozen=True, kw_only=True)
class Unbounded(Scored):
    """The weight without an upper bound."""

    def weight(self, log_ratios: torch.Tensor) -> torch.Tensor:
        return self.ratio(log_ratios).clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class Capped(Scored):
    """The weight between 0 and 2, as far above 1 as below it."""

    def weight(self, log_ratios: torch.Tensor) -> torch.Tensor:
        return self.ratio(log_ratios).clamp(0, 2)


@dataclass(frozen=True, kw_only=True)
class Power(Scored):
    """The weight `w^K`, at most 2: every denoise step is taken to have the ratio of the scored one."""

    def weight(self, log_ratios: torch.Tensor) -> torch.Tensor:
        return Scored().ratio(self.factor * log_ratios).clamp(max=2)


SCORED_BY_ARM: Mapping[str, Scored] = {
    "none": WHOLE,
    "w": WHOLE,
    "new": Unbounded(steps=DENOISE_STEPS),
    "capped": Capped(steps=DENOISE_STEPS),
    "power": Power(steps=DENOISE_STEPS),
}


@dataclass(frozen=True)
class Size:
    """A toy with its number of environments and its learning rate."""

    toy: Toy
    envs: int
    lr: float


SIZES_BY_NAME = {"few": Size(FEW_TOY, 64, 1e-3), "many": Size(MANY_TOY, 256, 2e-3)}


@dataclass(frozen=True)
class Run:
    """One run; runs without a lag have the arm `synchronous`."""

    size: str
    arm: str
    lag: int
    seed: int


def runs(seeds: Sequence[int] = PLANNED_SEEDS) -> Iterator[Run]:
    """Yield all runs in their order."""
    for seed in seeds:
        for size in SIZES_BY_NAME:
            yield Run(size, "synchronous", 0, seed)
            yield from (Run(size, arm, lag, seed) for lag in LAG_VERSIONS for arm in SCORED_BY_ARM)


def trained(run: Run) -> dict[str, Any]:
    """Train one run, and return its row."""
    size = SIZES_BY_NAME[run.size]
    radii = [POINT_RADII[env * len(POINT_RADII) // size.envs] for env in range(size.envs)]
    scored = SCORED_BY_ARM.get(run.arm, WHOLE)
    policy = type("ScoredFlowPolicy", (FlowPolicy,), {"scored": scored})
    result = train(
        _settings(run, size),
        size.toy.environments(radii, group_size=1, seed=run.seed),
        SERVICE_TIMES,
        points_start(_start(run.seed, size)),
        policy=partial(policy, hidden=HIDDEN_UNITS),
    )
    metrics = result.local.metrics
    key = f"train/staleness/lag_{run.lag}/kl"
    return {
        **vars(run),
        "success": [round(one["env/success_once"], 4) for one in metrics],
        "lag_seen": round(float(np.mean([seen.mean_lag for seen in result.batches])), 3),
        "weight": round(_mean_weight(metrics), 4) if run.lag and run.arm != "none" else 1.0,
        "kl": round(float(np.mean([one[key] for one in metrics if key in one] or [0.0])), 4),
    }


def _mean_weight(metrics: Sequence[Mapping[str, float]]) -> float:
    """Return the mean weight over all batches of a run with a correction."""
    return float(np.mean([one["train/actor/behaviour_weight"] for one in metrics]))


def _start(seed: int, size: Size) -> PointsStart:
    return PointsStart(
        radii=POINT_RADII,
        seed=seed,
        horizon=HORIZON_DECISIONS,
        hidden=HIDDEN_UNITS,
        lowest_success=0.3,
        highest_success=0.4,
        toy=size.toy,
        max_epochs=400,
    )


def _settings(run: Run, size: Size) -> LocalSettings:
    none = run.arm == "none"
    block: dict[str, Any] = {}
    if run.lag:
        correction = {"correction": "none" if none else "decoupled"}
        block = {"mode": "train", "deterministic": True, "train": {"max_staleness": run.lag, **correction}}
        block |= {"advanced": {"accept_bias": True}} if none else {}
    step = size.envs * HORIZON_DECISIONS // OPTIMIZER_STEPS
    return LocalSettings(
        algorithm="ppo",
        asynchrony=checked_config(block),
        total_envs=size.envs,
        horizon=HORIZON_DECISIONS,
        batches=BATCH_COUNT,
        global_batch_size=step,
        micro_batch_size=step,
        lr=size.lr,
        value_lr=max(size.lr, 1e-3),
        seed=run.seed,
        horizon_ends=True,
        weighting="episode",
    )


def complete_of(rows: Mapping[Run, Any], size: str) -> list[int]:
    """Return the seeds with all runs of a size."""
    return complete(rows, (run for run in runs() if run.size == size))


def shares(
    rows: Mapping[Run, Any], size: str, seeds: Sequence[int], arm: str, lags: Sequence[int]
) -> list[float]:
    """Return, for each seed, the mean over `lags` of the area above the start, as a share of the mean area
    without a lag.
    """
    unit = np.mean([_learned(rows[Run(size, "synchronous", 0, seed)]) for seed in seeds])
    return [
        float(np.mean([_learned(rows[Run(size, arm, lag, seed)]) for lag in lags]) / unit) for seed in seeds
    ]


def _learned(row: Mapping[str, Any]) -> float:
    return above_start(row["success"], row["success"][0])


def report(rows: Mapping[Run, Any]) -> str:
    """Return the page with its Markdown tables."""
    parts = [
        f"# The weight of a policy that matches flows\n\n{origin(ROWS_FILE)}. Areas are above the start.\n"
    ]
    tests: list[tuple[str, float, str]] = []
    for size in SIZES_BY_NAME:
        seeds = complete_of(rows, size)
        if len(seeds) < 2:
            continue
        sync = [_learned(rows[Run(size, "synchronous", 0, seed)]) for seed in seeds]
        parts.append(
            f"## `{size}`, {len(seeds)} of {len(PLANNED_SEEDS)} seeds; without a lag {tables.spread(sync)}\n"
        )
        parts.append(
            tables.markdown(
                TABLE_HEAD,
                [_row(rows, size, seeds, lag, arm) for lag in LAG_VERSIONS for arm in SCORED_BY_ARM],
            )
        )
        new, old = (np.array(shares(rows, size, seeds, arm, LAG_VERSIONS)) for arm in ("capped", "w"))
        test = tost_paired(list(old), list(new), EQUIVALENCE_MARGIN)
        p = float(stats.ttest_rel(new, old).pvalue)
        tests.append((size, p, tables.share(test)))
    parts.append("## Primary test: `capped` minus `w`, mean over lags 1, 2 and 4\n")
    parts.append(tables.markdown(["size", "difference, 90 % interval", "p", "by Holm at 5 %"], _holm(tests)))
    return "\n".join(parts)


ARM_HEADINGS = ["no weight", "`w`", "`1 + 4 (w - 1)` from 0", "from 0 to 2", "`w^4`, at most 2"]
PAGE_FILE = Path("benchmarks/learning/flow-weight.md")
BEGIN_MARK = "<!-- generated by `python -m benchmarks.learning.flow --report` -->"
END_MARK = "<!-- end of flow learning -->"
TABLE_HEAD = [
    "lag",
    "arm",
    "of the area without a lag",
    "to `w`, 90 % interval",
    "within 5 %",
    "kl of the action",
    "mean weight",
]


def _row(rows: Mapping[Run, Any], size: str, seeds: Sequence[int], lag: int, arm: str) -> list[str]:
    own, base = (shares(rows, size, seeds, name, [lag]) for name in (arm, "w"))
    against = [tables.NO_VALUE, tables.NO_VALUE]
    if arm != "w":
        test = tost_paired(base, own, EQUIVALENCE_MARGIN)
        against = [
            tables.share(test),
            "yes" if max(abs(test.ci_low or 1), abs(test.ci_high or 1)) < EQUIVALENCE_MARGIN else "no",
        ]
    of_runs = [rows[Run(size, arm, lag, seed)] for seed in seeds]
    # Rows of these arms hold the divergence of the scored step alone.
    factor = DENOISE_STEPS**2 if SCORED_BY_ARM[arm].whole else 1
    scaled = (("kl", factor), ("weight", 1))
    means = [f"{np.mean([row[name] for row in of_runs]) * by:.3f}" for name, by in scaled]
    return [str(lag), arm, f"{np.mean(own):.1%} ± {np.std(own, ddof=1):.1%}", *against, *means]


def short(rows: Mapping[Run, Any]) -> str:
    """Return the table of flow-weight.md: a line for every size and lag, a column for every arm."""
    lines = []
    for size in SIZES_BY_NAME:
        seeds = complete_of(rows, size)
        for lag in LAG_VERSIONS if seeds else ():
            means = [f"{np.mean(shares(rows, size, seeds, arm, [lag])):.0%}" for arm in SCORED_BY_ARM]
            lines.append([size, str(len(seeds)), str(lag), *means])
    return tables.markdown(["actions", "seeds", "lag", *ARM_HEADINGS], lines)


def _holm(tests: Sequence[tuple[str, float, str]]) -> list[list[str]]:
    significant = holm([p for _, p, _ in tests], TEST_LEVEL)
    return [
        [size, text, f"{p:.3g}", "different" if differs else "not shown to differ"]
        for (size, p, text), differs in zip(tests, significant, strict=True)
    ]


if __name__ == "__main__":
    found = by_seed(ROWS_FILE, Run, PLANNED_SEEDS, runs=runs, trained=trained, report=report)
    tables.publish(PAGE_FILE, BEGIN_MARK, END_MARK, short(found))
