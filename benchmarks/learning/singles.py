"""Is the same learned on single tasks of real physics: `nice python -m benchmarks.learning.singles`.

What follows was written down, and committed, before the first run that counts.

Question. Beyond the delay of a batch, does `full` as it comes learn on one Meta-World task what the
synchronous loop learns?

Runs. Three tasks with PPO (one epoch, four optimizer steps a batch) and one with GRPO (four epochs, groups
of four), each from policies that were cloned to 20 to 40 % success, one for each seed: 32 environments in 16
shards (8 with GRPO), 20 decisions, 30 batches; real physics and learners on a virtual clock, the fastest
shard in half the time of the slowest, training in 0.4 of that for an epoch (0.1 of four). `synchronous` has
every level off; `full` has `mode: full`, its shards, a micro-batch for each piece, and every other key as it
comes; `tasks` has `balance: tasks` besides, whose samples are about half as old. All have the start and the
goals of the seed.

Measure. Area above the start: the mean success of the training episodes over all batches, less that of the
first batch of the synchronous run of the seed. Differences are paired by seed, as shares of the mean area
above the start of the synchronous runs of the setting.

Primary tests. `full` minus the synchronous curve moved by one batch, which is what the delay of a batch
costs a run that learns exactly as well: equivalence within 5 %, two one-sided paired t-tests, Holm over the
settings at 5 %. A two-sided test that finds a difference, Holm over the same, is told as a loss or a gain,
also where it is within 5 %. The same for `tasks`, with a Holm of its own.

Shown beside it, with intervals and without a verdict: the same against the synchronous curve that was not
moved; and the batches that a run is late, by how many the mean synchronous curve has to be moved to have the
mean area of the other (90 % of 2,000 draws of seeds). The latter is how a cost would carry over to runs that
learn over more batches, if it is a delay.

A run of `full` counts with a mean lag of at least 0.5 from the third batch on; a seed of which it has not is
named, and left out of the setting.

Seeds 40 to 59, none of which was used before; by power: with a deviation of paired differences of 5 % of
what was learned, which is a guess, and a difference of 1.5 %, 20 seeds show equivalence within 5 % at the
strictest level of Holm's with 80 % probability. All settings of a seed are run before the next seed; where
time runs out, the seeds of which all runs are there are reported, and their number. Nobody looks at a
difference before the runs end.

Pilots, none of which counts, of seed 100, with 40 batches: both modes of the three settings with PPO, and
`synchronous` with GRPO. All learned, from 19 to 28 % success to 92 to 99 % in the last ten batches, nearly
all of it within 20; lags of 0.89 to 0.90. Areas, synchronous and `full`: 0.882 and 0.850, 0.880 and
0.827, 0.766 and 0.727.

Outcome, written down afterwards. `tasks` is the same within 5 % in all four settings, and `full` lost in one.
Since then whoever is free takes on the next task by itself: what is called `full` here is `balance: exact`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.learning import cells, preregistered_run, tables
from benchmarks.learning.campaign import by_seed, complete, origin
from benchmarks.learning.preregistration import Recipe, Task
from benchmarks.learning.statistics import Tost, holm, learned, moved, tost_paired
from benchmarks.learning.virtual_host import ServiceTimes

ROWS_FILE = cells.RESULTS_FOLDER / "singles.jsonl"
PLANNED_SEEDS = range(40, 60)
EQUIVALENCE_MARGIN = 0.05
LEAST_SEEDS = 5
LEAST_LAG = 0.5
BOOTSTRAP_DRAWS = 2000
COMPARED_MODES = ("synchronous", "full", "tasks")

PPO_RECIPE = Recipe(algorithm="ppo", update_epoch=1, lr=3e-4, batches=30, group_size=1)
GRPO_RECIPE = Recipe(algorithm="grpo", update_epoch=4, lr=2e-4, batches=30, group_size=4)
TRAINING_SHARES = {PPO_RECIPE: 0.4, GRPO_RECIPE: 0.1}
"""Time to train a batch for one epoch, as a share of the time of the slowest rollout, by recipe."""
TASK_AND_RECIPE_BY_SETTING = {
    "button-press-topdown, PPO": ("button-press-topdown-v3", PPO_RECIPE),
    "drawer-close, PPO": ("drawer-close-v3", PPO_RECIPE),
    "reach, PPO": ("reach-v3", PPO_RECIPE),
    "button-press-topdown, GRPO": ("button-press-topdown-v3", GRPO_RECIPE),
}


@dataclass(frozen=True)
class Run:
    """One run."""

    setting: str
    mode: str
    seed: int


def task_of(setting: str) -> Task:
    """Return the Meta-World task of a setting, with shards of whole groups."""
    name, recipe = TASK_AND_RECIPE_BY_SETTING[setting]
    shards = min(16, 32 // recipe.group_size)
    return Task(
        kind="metaworld",
        difficulties=(name,),
        envs=32,
        shards=shards,
        horizon=20,
        hidden=256,
        start=(0.2, 0.4),
    )


def recipe_and_times_of(setting: str) -> tuple[Recipe, ServiceTimes]:
    """Return the recipe of a setting, and its service times in units of a rollout of the slowest shard."""
    _, recipe = TASK_AND_RECIPE_BY_SETTING[setting]
    task = task_of(setting)
    return recipe, ServiceTimes(
        slowest_decision=1 / task.horizon,
        speeds=((0.5, 1.0),),
        jitter=0.02,
        inference=0.005,
        sample=TRAINING_SHARES[recipe] / (task.envs * task.horizon),
    )


def block_of(task: Task, mode: str) -> dict[str, Any]:
    """Return the `async` block of a mode."""
    if mode == "synchronous":
        return {}
    return {
        "mode": "full",
        "skip": False,  # `async.skip` is newer than these runs
        "advanced": {"balance": "tasks" if mode == "tasks" else "exact"},
        "rollout": {"shards": task.shards},
        "streamer": {"micro_batch_size": task.envs // task.shards * task.horizon},
    }


def runs(seeds: Sequence[int] = PLANNED_SEEDS) -> Iterator[Run]:
    """Yield all runs in their order."""
    for seed in seeds:
        yield from (
            Run(setting, mode, seed) for setting in TASK_AND_RECIPE_BY_SETTING for mode in COMPARED_MODES
        )


def trained(run: Run) -> dict[str, Any]:
    """Train one run, and return its row."""
    task = task_of(run.setting)
    recipe, times = recipe_and_times_of(run.setting)
    curves = preregistered_run.trained(task, recipe, block_of(task, run.mode), times, run.seed)
    return {**vars(run), **{name: curves[name] for name in ("success", "mean_lag", "streamed_share")}}


@dataclass(frozen=True)
class Compared:
    """The comparison of a mode with the synchronous runs of a setting."""

    setting: str
    mode: str
    seeds: list[int]
    left_out: list[int]
    """Seeds with too small a lag in their run of `full`."""
    lag: float
    beyond_delay: Tost
    total: Tost
    late: tuple[float, float, float]
    """Delay in batches, and the bounds of its interval."""


def compared(rows: Mapping[Run, Any], setting: str, mode: str, seeds: Sequence[int]) -> Compared:
    """Compare a mode with the synchronous runs, over the seeds that count."""
    counted = [seed for seed in seeds if _lag(rows[Run(setting, "full", seed)]) >= LEAST_LAG]
    curves, others = (
        [rows[Run(setting, one, seed)]["success"] for seed in counted] for one in ("synchronous", mode)
    )
    sync, later, other = learned(curves, [moved(curve, 1) for curve in curves], others)
    return Compared(
        setting,
        mode,
        counted,
        [seed for seed in seeds if seed not in counted],
        float(np.mean([_lag(rows[Run(setting, mode, seed)]) for seed in counted])),
        tost_paired(later, other, EQUIVALENCE_MARGIN),
        tost_paired(sync, other, EQUIVALENCE_MARGIN),
        _late(np.array(curves), np.array(others)),
    )


def _lag(row: Mapping[str, Any]) -> float:
    return float(np.mean(row["mean_lag"][2:]))


def batches_late(sync: np.ndarray, other: np.ndarray) -> float:
    """Return the number of batches to move the success curve `sync` by, so that its area is that of `other`.

    Between whole numbers the area is interpolated. Where `other` is ahead, the number is negative, by
    extrapolation from 0 and 1.
    """
    area = float(other.mean())
    curve, before, behind = sync.tolist(), math.nan, float(np.mean(sync.tolist()))
    for whole in range(1, len(curve)):
        before, behind = behind, float(np.mean(moved(curve, whole)))
        if behind <= area:
            break
    step = before - behind
    return whole - 1 + (before - area) / step if step else math.nan


def _late(sync: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    chance = np.random.default_rng(0)
    picks = chance.integers(len(sync), size=(BOOTSTRAP_DRAWS, len(sync)))
    drawn = [batches_late(sync[pick].mean(axis=0), other[pick].mean(axis=0)) for pick in picks]
    low, high = np.quantile(drawn, (0.05, 0.95))
    return batches_late(sync.mean(axis=0), other.mean(axis=0)), float(low), float(high)


def report(rows: Mapping[Run, Any]) -> str:
    """Return the page with its Markdown tables."""
    seeds = complete(rows, runs())
    said = (
        f"# What is learned on single tasks of real physics\n\n{origin(ROWS_FILE)}. Differences are shares "
        "of what the synchronous runs learned, with 90 % intervals. Seeds of which all runs are there: "
        f"{len(seeds)} of {len(PLANNED_SEEDS)}; with fewer than {LEAST_SEEDS} nothing is claimed.\n"
    )
    if len(seeds) < LEAST_SEEDS:
        return said
    return "\n".join([said, *(_table(rows, mode, seeds) for mode in COMPARED_MODES[1:])])


def claims(rows: Mapping[Run, Any], mode: str, seeds: Sequence[int]) -> list[tuple[Compared, str]]:
    """Return the comparison of every setting with its claim by Holm; the claim may be empty."""
    found = [compared(rows, setting, mode, seeds) for setting in TASK_AND_RECIPE_BY_SETTING]
    same = holm([one.beyond_delay.p_value or 0.0 for one in found])
    differs = holm([one.beyond_delay.p_difference or 0.0 for one in found])
    words = []
    for one, is_same, is_other in zip(found, same, differs, strict=True):
        more = "more" if one.beyond_delay.difference > 0 else "less"
        words.append(", ".join(["the same within 5 %"] * is_same + [more] * is_other))
    return list(zip(found, words, strict=True))


def _table(rows: Mapping[Run, Any], mode: str, seeds: Sequence[int]) -> str:
    lines = []
    for one, claim in claims(rows, mode, seeds):
        without = f", without {', '.join(map(str, one.left_out))}" if one.left_out else ""
        late, low, high = one.late
        lines.append(
            [
                one.setting,
                f"{len(one.seeds)}{without}",
                tables.share(one.beyond_delay),
                f"{one.beyond_delay.p_value:.4f}",
                claim,
                tables.share(one.total),
                f"{late:.1f} [{low:.1f}, {high:.1f}]",
                f"{one.lag:.2f}",
            ]
        )
    head = [
        f"`{mode}`",
        "seeds",
        "against synchronous, a batch later",
        "p of being within 5 %",
        "claim, by Holm",
        "against synchronous",
        "batches late",
        "lag",
    ]
    return tables.markdown(head, lines)


if __name__ == "__main__":
    by_seed(ROWS_FILE, Run, PLANNED_SEEDS, runs=runs, trained=trained, report=report)
