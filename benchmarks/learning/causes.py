"""Why is less learned on tasks of unequal speed: `nice python -m benchmarks.learning.causes`.

What follows was written down, and committed, before the first run that counts.

Question. On the pair of Meta-World tasks of which one is fast (`world-ppo-1-lag1-spread` of
preregistration.yaml) the default learned less than the delay of a batch explains: 9.5 % [-0.7, 19.7] of
what was learned, over seeds 0 to 9, of which half came of one seed; 4.0 % [0.0, 8.0] without level 3.
Which part of asynchronous training costs it?

Runs. That setting's task, start, recipe (PPO, one epoch, four optimizer steps, 30 batches) and virtual
clock. Every arm adds one thing to the one before it; all have the same starts and the same goals by
seed:

    synchronous  every level off
    lag          level 1 alone, every sample exactly one version old (`async.deterministic`): the delay of a
                 batch, corrected, and nothing else
    mixed        levels 1 and 2: shards run ahead of each other, so that within a batch the ages of the two
                 tasks differ, and weights change within a trajectory; no level 3
    own          and level 3: the first optimizer step normalises advantages by the batch before, the three
                 others, made when the batch is complete, by the batch itself; the default
    before       the same, all four steps normalised by the batch before, as the package did
    tasks        `own` with `balance: tasks`, whose samples are younger

Values are recomputed in all of them by the policy that begins the batch, as the default has it, so that
their age is no factor.

Measure. Area above the start: the mean success of the training episodes over all batches, tasks weighing
the same, less that of the first batch of the synchronous run of the seed. The reference of every arm is
the synchronous curve moved by one batch, which is what the delay of a batch costs a run that learns
exactly as well. Differences are paired by seed, as shares of the mean area above the start of the
synchronous runs.

Primary tests. Arm minus reference, a two-sided paired t-test for each of the five arms, Holm over the
five at 5 %. A significant loss is a loss; an arm whose 90 % interval lies within 5 % is equivalent; of
others the interval is told and nothing is claimed.

Secondary, with 90 % intervals and without a verdict: `mixed` minus `lag`, `own` minus `mixed`, `before`
minus `own`, `tasks` minus `own`; and the mean age of samples and the largest norm of a gradient by arm.

Rule. Steps of a complete batch are normalised by the batch itself whatever comes of this, as that is
more exact and costs nothing. If `tasks` or `mixed` is significantly better than `own` (paired t-test,
Holm over these two), the default follows it; else it stays.

Seeds 10 to 39, none of which was used before, as far as time goes; all arms of a seed are run before the
next seed, and the seeds of which all runs are there are reported, and their number. With the deviation
of paired differences of the earlier runs without level 3 (8 % of what was learned) 10 seeds show a loss
of 8 % with 80 % probability, 30 one of 4.5 %.

Pilots: none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.learning import cells, preregistered_run, tables
from benchmarks.learning.campaign import by_seed, complete, origin
from benchmarks.learning.preregistered_run import service_times
from benchmarks.learning.preregistration import Setting, load
from benchmarks.learning.statistics import holm, learned, moved, tost_paired
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.learner import LocalTraining, local_learner
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.loops.streaming_learner import StreamingLearner
from rlinf_async.observe.meters import BusyMeter

BASE_SETTING = "world-ppo-1-lag1-spread"
ROWS_FILE = cells.RESULTS_FOLDER / "causes.jsonl"
PLANNED_SEEDS = range(10, 40)
EQUIVALENCE_MARGIN = 0.05
LEAST_SEEDS = 5
"""With fewer seeds nothing is claimed, whatever their spread; added after two seeds had been read."""
ARM_PAIRS = (("mixed", "lag"), ("own", "mixed"), ("before", "own"), ("tasks", "own"))
"""Pairs of arms that differ in one thing: the arm with the change, and the arm without it."""


class ByTheBatchBefore(StreamingLearner):
    """A learner that normalises the advantages of all optimizer steps by the previous batch, as the package
    once did.
    """

    def _train_rollout(self, rollout: Tree) -> None:
        rollout["advantages"] = self._scale.apply(leaf(rollout, "advantages"))
        super()._train_rollout(rollout)

    def _normalize(self, advantages: torch.Tensor) -> torch.Tensor:
        return advantages


def before(settings: LocalSettings, model: GaussianPolicy, busy: BusyMeter) -> StreamingLearner:
    """Return the learner of the arm `before`."""
    return ByTheBatchBefore(
        LocalTraining(settings=settings, model=model),
        settings.run,
        parameters=lambda: list(model.parameters()),
        busy=busy,
    )


@dataclass(frozen=True)
class Run:
    """One run."""

    arm: str
    seed: int


def block(arm: str, setting: Setting) -> dict[str, Any]:
    """Return the `async` block of an arm."""
    task = load().tasks[setting.task]
    if arm == "synchronous":
        return {}
    if arm == "lag":
        return {"mode": "train", "deterministic": True, "train": {"max_staleness": setting.lag}}
    balance = "tasks" if arm == "tasks" else "exact"
    streamer = {"micro_batch_size": task.envs // task.shards * task.horizon}
    return {
        "mode": "full",
        "skip": False,  # `async.skip` is newer than these runs
        "train": {"max_staleness": setting.lag},
        "rollout": {"shards": task.shards},
        "advanced": {"balance": balance, "normalization": "running"},
        "streamer": {"enabled": False} if arm == "mixed" else streamer,
    }


ARM_NAMES = ("synchronous", "lag", "mixed", "own", "before", "tasks")


def runs(seeds: Sequence[int] = PLANNED_SEEDS) -> Iterator[Run]:
    """Yield all runs in their order."""
    for seed in seeds:
        yield from (Run(arm, seed) for arm in ARM_NAMES)


def trained(run: Run, base: str = BASE_SETTING) -> dict[str, Any]:
    """Train one run of the preregistered setting `base`, and return its row."""
    stated = load()
    setting = stated.setting(base)
    task, recipe = stated.tasks[setting.task], stated.recipes[setting.recipe or ""]
    curves = preregistered_run.trained(
        task,
        recipe,
        block(run.arm, setting),
        service_times(stated.service_times, setting, task),
        run.seed,
        learner_of=before if run.arm == "before" else local_learner,
    )
    return {**vars(run), **curves, "virtual_seconds": curves["virtual_seconds"][-1]}


def shares(rows: Mapping[Run, Any], seeds: Sequence[int]) -> dict[str, list[float]]:
    """Return the areas above the start by seed, for every arm and for `moved`, the synchronous curve moved by
    a batch.
    """
    sync = [rows[Run("synchronous", seed)]["success"] for seed in seeds]
    curves = {arm: [rows[Run(arm, seed)]["success"] for seed in seeds] for arm in ARM_NAMES}
    curves["moved"] = [moved(curve, 1) for curve in sync]
    _, *areas = learned(sync, *curves.values())
    return dict(zip(curves, areas, strict=True))


def report(rows: Mapping[Run, Any]) -> str:
    """Return the page with its Markdown tables."""
    seeds = complete(rows, runs())
    said = (
        f"# Why less is learned on two tasks of unequal speed\n\n{origin(ROWS_FILE)}. Differences are shares "
        "of what the synchronous runs learned, with 90 % intervals. Seeds of which all runs are there: "
        f"{len(seeds)} of {len(PLANNED_SEEDS)} ({', '.join(map(str, seeds))}); with fewer than {LEAST_SEEDS} "
        "nothing is claimed.\n"
    )
    if len(seeds) < 2:
        return f"{said}\nOne seed has no interval: nothing is said before there are two.\n"
    found = shares(rows, seeds)
    arms = [arm for arm in ARM_NAMES if arm != "synchronous"]
    tests = [tost_paired(found["moved"], found[arm], EQUIVALENCE_MARGIN) for arm in arms]
    significant = holm([test.p_difference or 0.0 for test in tests])
    lines = []
    for arm, test, differs in zip(arms, tests, significant, strict=True):
        each = [rows[Run(arm, seed)] for seed in seeds]
        claims = [("less" if test.difference < 0 else "more") if differs else ""]
        claims += ["within 5 %" if test.equivalent else ""]
        lines.append(
            [
                arm,
                tables.share(test),
                f"{test.p_difference:.3f}",
                ", ".join(filter(None, claims)) if len(seeds) >= LEAST_SEEDS else "",
                f"{np.mean([np.mean(row['mean_lag']) for row in each]):.2f}",
                f"{max(max(row['gradient_norm']) for row in each):.1f}",
            ]
        )
    head = ["arm", "against synchronous, a batch later", "p", "claim", "lag", "largest gradient"]
    steps = [
        [f"`{arm}` minus `{base}`", tables.share(tost_paired(found[base], found[arm], EQUIVALENCE_MARGIN))]
        for arm, base in ARM_PAIRS
    ]
    added = tables.markdown(["what is added", "difference"], steps)
    return f"{said}\n{tables.markdown(head, lines)}\n{added}"


if __name__ == "__main__":
    by_seed(ROWS_FILE, Run, PLANNED_SEEDS, runs=runs, trained=trained, report=report)
