"""Does `full` as it ships learn what the synchronous loop learns, on fresh seeds and fresh starts: `nice
python -m benchmarks.learning.confirm`.

What follows was written down, and committed, before any run. An earlier plan of 40 seeds, of which no run was
made, also held runs of RLinf's pi0 class.

Question. Is the learning of `full` not below -5 % of that of the synchronous loop, against the synchronous
curve itself?

Runs. MLP policies on real Meta-World physics and the virtual clock of `singles`: two single tasks with PPO,
one with GRPO, and a pair of tasks of unequal speed with PPO; 30 batches. Arms: `synchronous`; `full` with its
shards, a micro-batch for each piece, and every other key as it ships; `lean`, of the first five seeds. Each
seed clones a start of its own, which its arms share. All runs of a seed are made before the next seed.

Measure. Area of success above the start, as a share of the mean that the synchronous runs of the setting
learned, paired by seed. Beside it, and without a verdict: the same against the synchronous curve moved by a
batch.

Primary test. `full` minus synchronous, averaged over the four settings of a seed, is above -5 %: a one-sided
paired t-test at 2.5 %. If it is, the same for each setting by itself, Holm over the four at 2.5 %. An
interval of 95 % that lies below 0 is told as a loss beside it, one that lies below -5 % as a loss of more
than 5 %.

Secondary, without a verdict: of how many pairs of runs the curve of `lean` is that of `synchronous`.

Stopping rule. Twenty seeds, 100 to 119, none of which was used before. Nobody looks before the last: until
every planned run has a row the report says how many there are, and computes nothing. If the experiment ends
earlier for good, it has no result, and its rows are shown as such. Runs that fail are made again. No
default is changed while it runs.

Power. Paired differences had a deviation of about 4.5 % in a single task, and 5.7 % in the pair. The mean of
four settings, if they vary independently, has 2.5 %: with a loss of 3 % twenty seeds exclude 5 % with a
probability of 0.92. A single setting excludes it with 0.65 at a loss of 2.5 %, with 0.41 at Holm's strictest
step.

Time, estimated: five minutes of one core a seed.

Amendment, written when all of these runs had been made and read, and before any run of what it adds. A fault
of this file: `full` left `async.advanced.balance` at `auto`, which hosts resolve, and the virtual host did
not, so that the arm is `balance: exact`. That ships where environments cannot take on tasks; on environments
like these `balance: tasks` ships. The arm `tasks` is `full` with that written out: all twenty seeds, from the
same starts, against the same synchronous runs, by the same measure, tests and stopping rule. Both are
reported. In both, training lasts on the virtual clock as if no row were left out, so that samples are older
than in a run.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.learning import cells, preregistered_run, singles, tables
from benchmarks.learning.campaign import by_seed, origin
from benchmarks.learning.comparison import MARGIN, TAIL, Finding, finding, not_worse
from benchmarks.learning.preregistered_run import service_times
from benchmarks.learning.preregistration import Recipe, Task, load
from benchmarks.learning.statistics import Tost, learned, tost_paired
from benchmarks.learning.virtual_host import ServiceTimes

ROWS_FILE = cells.RESULTS_FOLDER / "confirm.jsonl"
PLANNED_SEEDS = range(100, 120)
LEAN_SEEDS = PLANNED_SEEDS[:5]
EPOCHS_BETWEEN_TRIALS = 4
"""The search for a start tries every fourth epoch of cloning: a trial takes longer than an epoch."""
PAIR = "a pair of unequal speed, PPO"
PAIR_SETTING = "world-ppo-1-lag1-spread"
TITLE_BY_ARM = {
    "tasks": "`balance: tasks`, which ships on these environments (added by the amendment)",
    "full": "`balance: exact`, which ships where environments cannot take on tasks",
}
SETTINGS = ("button-press-topdown, PPO", "reach, PPO", "button-press-topdown, GRPO", PAIR)


@dataclass(frozen=True)
class Run:
    """One run."""

    setting: str
    arm: str
    seed: int


def runs(seeds: Sequence[int] = PLANNED_SEEDS) -> Iterator[Run]:
    """Yield all runs in their order."""
    for seed in seeds:
        arms = ("synchronous", "full", *(["lean"] if seed in LEAN_SEEDS else []))
        yield from (Run(setting, arm, seed) for setting in SETTINGS for arm in arms)
    yield from (Run(setting, "tasks", seed) for seed in seeds for setting in SETTINGS)


def task_of(setting: str) -> tuple[Task, Recipe, ServiceTimes]:
    """Return task, recipe and service times of a setting."""
    if setting != PAIR:
        return singles.task_of(setting), *singles.recipe_and_times_of(setting)
    stated = load()
    like = stated.setting(PAIR_SETTING)
    task = stated.tasks[like.task]
    return task, stated.recipes[like.recipe or ""], service_times(stated.service_times, like, task)


def block_of(task: Task, arm: str) -> dict[str, Any]:
    """Return the `async` block of an arm."""
    if arm == "synchronous":
        return {}
    if arm == "lean":
        return {"mode": "lean"}
    piece = task.envs // task.shards * task.horizon
    block = {"mode": "full", "rollout": {"shards": task.shards}, "streamer": {"micro_batch_size": piece}}
    return {**block, "advanced": {"balance": "tasks" if arm == "tasks" else "exact"}}


def trained(run: Run) -> dict[str, Any]:
    """Train one run, and return its row."""
    task, recipe, times = task_of(run.setting)
    make_start(task, run.seed)
    curves = preregistered_run.trained(task, recipe, block_of(task, run.arm), times, run.seed)
    return {**vars(run), **{name: curves[name] for name in ("success", "mean_lag", "streamed_share")}}


def make_start(task: Task, seed: int) -> None:
    """Clone the start that all runs of a task and a seed read from one file."""
    preregistered_run.mixed_start_of(task, seed, epochs_between_trials=EPOCHS_BETWEEN_TRIALS)


def is_complete(rows: Container[Run], arm: str) -> bool:
    """Return True if every planned run of `arm` and of the synchronous loop has a row."""
    return all(run in rows for run in runs() if run.arm in (arm, "synchronous"))


def report(rows: Mapping[Run, Any]) -> str:
    """Return the page; of an arm before its last planned run it only counts the runs."""
    said = [f"# Does `full` as it ships learn the same, on fresh seeds and starts\n\n{origin(ROWS_FILE)}.\n"]
    for arm, title in TITLE_BY_ARM.items():
        said.append(f"## {title}\n")
        if is_complete(rows, arm):
            said.append(table(rows, arm))
            continue
        there, planned = sum(run.arm == arm for run in rows), len(SETTINGS) * len(PLANNED_SEEDS)
        said.append(f"{there} of {planned} runs are there: nothing is computed before the last.\n")
    if is_complete(rows, "lean"):
        same, pairs = lean_pairs(rows)
        said.append(f"The curve of `lean` is that of `synchronous` in {same} of {pairs} pairs.\n")
    return "\n".join(said)


def table(rows: Mapping[Run, Any], arm: str) -> str:
    """Return the Markdown table of the primary tests of an arm with all its rows."""
    mean, p_mean = mean_of_settings(rows, arm)
    kept = p_mean < TAIL
    found = findings(rows, arm)
    each = not_worse(found) if kept else [False] * len(found)
    lines = [
        ["mean of the four", tables.share(mean), f"{p_mean:.4f}", claim(mean, kept), ""],
        *(
            [
                one.name,
                tables.share(one.itself),
                f"{one.p_not_worse:.4f}",
                claim(one.itself, own),
                tables.share(one.moved),
            ]
            for one, own in zip(found, each, strict=True)
        ),
    ]
    head = [
        "",
        "against synchronous, 95 %",
        "p of not below -5 %",
        "claim, by the plan",
        "against the moved curve",
    ]
    return tables.markdown(head, lines)


def claim(test: Tost, not_below_margin: bool) -> str:
    """Return what the plan allows to say of a difference."""
    high = test.ci_high or 0.0
    loss = ["less, by more than 5 %"] if high < -MARGIN else ["less"] if high < 0 else []
    return ", ".join(loss + ["not below -5 %"] * not_below_margin) or "not shown"


def mean_of_settings(rows: Mapping[Run, Any], arm: str) -> tuple[Tost, float]:
    """Return `arm` minus synchronous, averaged over the settings of a seed, and p of not below -5 %."""
    sides = []
    for setting in SETTINGS:
        sides.append(learned(*(_success(rows, setting, one) for one in ("synchronous", arm))))
    base, full = np.mean(sides, axis=0)
    p_value = stats.ttest_1samp(full - base, -MARGIN, alternative="greater").pvalue
    return tost_paired(base, full, MARGIN, TAIL), float(p_value)


def findings(rows: Mapping[Run, Any], arm: str) -> list[Finding]:
    """Return the comparison of each setting with `arm`."""
    return [
        finding(
            "",
            setting,
            *(_success(rows, setting, one) for one in ("synchronous", arm)),
            lag=float(np.mean([rows[Run(setting, arm, seed)]["mean_lag"][2:] for seed in PLANNED_SEEDS])),
        )
        for setting in SETTINGS
    ]


def lean_pairs(rows: Mapping[Run, Any]) -> tuple[int, int]:
    """Return in how many pairs `lean` has the curve of `synchronous`, and how many there are."""
    same = [
        rows[run]["success"] == rows[Run(run.setting, "synchronous", run.seed)]["success"]
        for run in runs()
        if run.arm == "lean"
    ]
    return sum(same), len(same)


def _success(rows: Mapping[Run, Any], setting: str, arm: str) -> list[list[float]]:
    return [rows[Run(setting, arm, seed)]["success"] for seed in PLANNED_SEEDS]


if __name__ == "__main__":
    by_seed(ROWS_FILE, Run, PLANNED_SEEDS, runs=runs, trained=trained, report=report)
