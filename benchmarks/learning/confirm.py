"""Does `full` as it ships learn what the synchronous loop learns, on fresh seeds and fresh starts: `nice
python -m benchmarks.learning.confirm`.

**Not run yet: no row of it exists.** What follows was written down, and committed, before any run.

Question. Is the learning of `full` not below -5 % of that of the synchronous loop, against the synchronous
curve itself? And which of lag, order of samples, dead work and machinery costs or gives what, in learning
and in seconds?

Runs, all of a seed before the next seed. Each seed clones a start of its own, which its arms share.

    pi0      RLinf's pi0 class, tiny, on RLinf's workers (config `metaworld_ppo_pi0`, 60 batches). Arms:
             `off`; `lean`; `lag0`, which is `full` with `max_staleness: 0`, so that shards and the denoise
             index of a pass are those of `full` and no sample is old; `full`
    MLPs     two single tasks with PPO, one with GRPO, and a pair of tasks of unequal speed, on the virtual
             clock of `singles`. Arms: `synchronous`; `lean`; `full` with its shards, a micro-batch for each
             piece, and every other key as it ships

Measure. Area of success above the start, as a share of the mean that the synchronous runs of the setting
learned, paired by seed. Beside it, and without a verdict: the same against the synchronous curve moved by a
batch.

Primary tests, one for each of the five settings: `full` minus synchronous is above -5 %, a one-sided paired
t-test, Holm over the five at 2.5 %. An interval of 95 % that lies below 0 is told as a loss beside it, one
that lies below -5 % as a loss of more than 5 %.

Secondary, intervals of 95 % and no verdict: `lean` minus synchronous; `lag0` minus `off`; `full` minus
`lag0`; and of pi0 the seconds to 80 % success, `full` over `off`, `lean` over `off`, `lag0` over `off`, as
geometric means with intervals, over the seeds in which both get there; others are named.

Stopping rule. Forty seeds, 100 to 139, none of which was used before. Nobody looks before the last: until
every planned run has a row the report says how many there are, and computes nothing. If the experiment ends
earlier for good, it has no result, and its rows are shown as such. Runs that fail are made again. No
default is changed while it runs.

Power. Paired differences of single tasks had a deviation of 4.5 % (17 seeds), of pi0 of 15.5 % (ten seeds
of one start). With a loss of 2.5 %, 40 seeds exclude 5 % in a single task with a probability of 0.93, at
the strictest step of Holm with 0.78. Of pi0 they exclude it with 0.51 if nothing is lost, with 0.98 if 5 %
is gained; 80 seeds would want 20 hours.

Time, estimated: two cores and nothing else on the machine, 16 minutes a seed of pi0 and 5 of MLPs; 14 hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.learning import cells, pi0, preregistered_run, singles, tables
from benchmarks.learning.campaign import by_seed, origin
from benchmarks.learning.evidence import TAIL, Finding, finding, not_worse
from benchmarks.learning.on_ray import RUNS_FOLDER, train
from benchmarks.learning.preregistered_run import service_times
from benchmarks.learning.preregistration import Recipe, Task, load
from benchmarks.learning.statistics import learned, tost_paired
from benchmarks.learning.virtual_host import ServiceTimes

ROWS_FILE = cells.RESULTS_FOLDER / "confirm.jsonl"
PLANNED_SEEDS = range(100, 140)
PI0 = "pi0"
PAIR = "a pair of unequal speed, PPO"
PAIR_SETTING = "world-ppo-1-lag1-spread"
SINGLE_NAMES = ("button-press-topdown, PPO", "reach, PPO", "button-press-topdown, GRPO")
MLP_ARMS = ("synchronous", "lean", "full")
OVERRIDES_BY_PI0_ARM: dict[str, tuple[str, ...]] = {
    "off": ("async.mode=off",),
    "lean": ("async.mode=lean",),
    "lag0": ("async.mode=full", "async.train.max_staleness=0"),
    "full": ("async.mode=full",),
}
ARMS_BY_SETTING: dict[str, tuple[str, ...]] = {
    PI0: tuple(OVERRIDES_BY_PI0_ARM),
    **dict.fromkeys((*SINGLE_NAMES, PAIR), MLP_ARMS),
}
"""The first arm of each setting is the reference, the last the one that is tested."""
SECONDARY_PAIRS = (("lean", None), ("lag0", None), ("full", "lag0"))
"""Pairs of arms; None is the reference."""


@dataclass(frozen=True)
class Run:
    """One run."""

    setting: str
    arm: str
    seed: int


def runs(seeds: Sequence[int] = PLANNED_SEEDS) -> Iterator[Run]:
    """Yield all runs in their order; the arms of a seed begin with another one at each seed."""
    for seed in seeds:
        for setting, arms in ARMS_BY_SETTING.items():
            first = seed % len(arms)
            yield from (Run(setting, arm, seed) for arm in (*arms[first:], *arms[:first]))


def task_of(setting: str) -> tuple[Task, Recipe, ServiceTimes]:
    """Return task, recipe and service times of a setting of MLPs."""
    if setting != PAIR:
        return singles.task_of(setting), *singles.recipe_and_times_of(setting)
    stated = load()
    like = stated.setting(PAIR_SETTING)
    task = stated.tasks[like.task]
    return task, stated.recipes[like.recipe or ""], service_times(stated.service_times, like, task)


def block_of(task: Task, arm: str) -> dict[str, Any]:
    """Return the `async` block of an arm of MLPs."""
    if arm == "synchronous":
        return {}
    if arm == "lean":
        return {"mode": "lean"}
    piece = task.envs // task.shards * task.horizon
    return {"mode": "full", "rollout": {"shards": task.shards}, "streamer": {"micro_batch_size": piece}}


def overrides_of(run: Run) -> list[str]:
    """Return the overrides of a run of pi0; its start is drawn from its seed."""
    directory = (RUNS_FOLDER / f"confirm-{run.arm}-seed{run.seed}").absolute()
    return [
        *OVERRIDES_BY_PI0_ARM[run.arm],
        f"actor.seed={run.seed}",
        f"warm_start.seed={run.seed}",
        f"runner.logger.log_path={directory}",
    ]


def trained(run: Run) -> dict[str, Any]:
    """Train one run, and return its row.

    Raises:
        RuntimeError: the run failed; the message has the end of its output.
    """
    if run.setting == PI0:
        directory = (RUNS_FOLDER / f"confirm-{run.arm}-seed{run.seed}").absolute()
        train(directory, ["-n", pi0.CONFIG_NAME, *overrides_of(run)])
        return {**vars(run), **pi0.read_curve(directory)}
    task, recipe, times = task_of(run.setting)
    curves = preregistered_run.trained(task, recipe, block_of(task, run.arm), times, run.seed)
    return {**vars(run), **{name: curves[name] for name in ("success", "mean_lag", "streamed_share")}}


def report(rows: Mapping[Run, Any]) -> str:
    """Return the page; before the last planned run it only counts the runs."""
    there = sum(run in rows for run in runs())
    said = f"# Does `full` as it ships learn the same, on fresh seeds and starts\n\n{origin(ROWS_FILE)}.\n"
    if there < len(list(runs())):
        return (
            f"{said}\n{there} of {len(list(runs()))} runs are there: nothing is computed before the last.\n"
        )
    found = [_finding(rows, setting) for setting in ARMS_BY_SETTING]
    lines = [
        [
            one.name,
            tables.share(one.itself),
            f"{one.p_not_worse:.4f}",
            ", ".join(["not below -5 %"] * kept + ["less"] * ((one.itself.ci_high or 0.0) < 0))
            or "not shown",
            tables.share(one.moved),
        ]
        for one, kept in zip(found, not_worse(found), strict=True)
    ]
    head = [
        "`full`",
        "against synchronous, 95 %",
        "p of not below -5 %",
        "claim, by Holm",
        "against the moved curve",
    ]
    secondary = tables.markdown(["", "difference, 95 %"], _secondary(rows))
    seconds = tables.markdown(["pi0: seconds to 80 %", "ratio, 95 %", "seeds without both"], _seconds(rows))
    return "\n".join([said, tables.markdown(head, lines), secondary, seconds])


def _success(rows: Mapping[Run, Any], setting: str, arm: str) -> list[list[float]]:
    return [rows[Run(setting, arm, seed)]["success"] for seed in PLANNED_SEEDS]


def _finding(rows: Mapping[Run, Any], setting: str) -> Finding:
    first, *_, last = ARMS_BY_SETTING[setting]
    return finding("", setting, *(_success(rows, setting, arm) for arm in (first, last)), lag=1.0)


def _secondary(rows: Mapping[Run, Any]) -> Iterator[list[str]]:
    for setting, (first, *others) in ARMS_BY_SETTING.items():
        sync = _success(rows, setting, first)
        for arm, other in SECONDARY_PAIRS:
            if arm in others and (other is None or other in others):
                _, before, after = learned(
                    sync, *(_success(rows, setting, one) for one in (other or first, arm))
                )
                test = tost_paired(before, after, 1.0, TAIL)
                yield [f"{setting}: `{arm}` minus `{other or first}`", tables.share(test)]


def _seconds(rows: Mapping[Run, Any]) -> Iterator[list[str]]:
    first, *others = ARMS_BY_SETTING[PI0]
    for arm in others:
        logs, without = [], []
        for seed in PLANNED_SEEDS:
            before, after = (pi0.seconds_to_level(rows[Run(PI0, one, seed)]) for one in (first, arm))
            if before and after:
                logs.append(math.log(after / before))
            else:
                without.append(str(seed))
        test = tost_paired([0.0] * len(logs), logs, 1.0, TAIL)
        middle, low, high = (math.exp(value or 0.0) for value in (test.difference, test.ci_low, test.ci_high))
        yield [f"`{arm}` over `{first}`", f"{middle:.2f} [{low:.2f}, {high:.2f}]", ", ".join(without)]


if __name__ == "__main__":
    by_seed(ROWS_FILE, Run, PLANNED_SEEDS, runs=runs, trained=trained, report=report)
