"""One run of the preregistered experiment on the local host, on a virtual clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.learning.cells import store
from benchmarks.learning.points import GAUSSIAN_TOY, TOKENS_56, PointsStart, points_start
from benchmarks.learning.preregistration import OPTIMIZER_STEPS, Recipe, Setting, Side, Task, load
from benchmarks.learning.virtual_host import BatchSeen, LearnerOf, ServiceTimes, VirtualResult, train
from rlinf_async.config.checked import checked_config
from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.inference import State
from rlinf_async.hosts.local.learner import local_learner
from rlinf_async.hosts.local.policy import PolicyFactory
from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy

if TYPE_CHECKING:
    from benchmarks.learning.simulators import Start

RECOMPUTED_ANCHOR = "recomputed"
"""The default anchor of all runs."""
TOY_BY_KIND = {"points": GAUSSIAN_TOY, "tokens": TOKENS_56}
"""Toys by the kind of a task."""


def run(setting: Setting, side: Side, seed: int) -> None:
    """Train one run of a setting and write its result.

    Raises:
        ValueError: the setting takes optimizer steps in order of arrival, which this package no longer does.
    """
    if side == "asynchronous" and setting.in_order_of_arrival:
        raise ValueError(
            f"{setting.name} takes its optimizer steps in order of arrival, which this package no longer "
            "does: its results are those of the version that made them"
        )
    torch.set_num_threads(1)
    stated = load()
    task, recipe = stated.tasks[setting.task], stated.recipes[setting.recipe or ""]
    began = time.process_time()
    times = service_times(stated.service_times, setting, task)
    block = block_of(setting, task) if side == "asynchronous" else {}
    curves = trained(task, recipe, block, times, seed)
    record = {"run": stated.record(setting, side, seed), "cpu_seconds": round(time.process_time() - began, 1)}
    store(setting.path(side, seed), record | curves)


def trained(
    task: Task,
    recipe: Recipe,
    block: Mapping[str, Any],
    times: ServiceTimes,
    seed: int,
    *,
    learner_of: LearnerOf = local_learner,
) -> dict[str, Any]:
    """Train one run with the `async` block `block`; return its curves, with a value for each batch."""
    environments, weights = begin(task, recipe, seed)
    result = train(
        settings_of(task, recipe, block, seed),
        environments,
        times,
        weights,
        policy=policy_of(task),
        learner_of=learner_of,
    )
    return _curves(result, task)


def block_of(setting: Setting, task: Task) -> dict[str, Any]:
    """Return the `async` block of a setting: all three levels, and a micro-batch for every piece.

    Settings with a correction have level 1 alone, with a fixed lag.
    """
    if setting.correction:
        correction = dict(setting.correction)
        advanced = {"proximal": RECOMPUTED_ANCHOR} | {
            name: correction.pop(name) for name in ("max_weight", "proximal") if name in correction
        }
        train = {"max_staleness": setting.lag, **correction}
        return {"mode": "train", "deterministic": True, "train": train, "advanced": advanced}
    piece = task.envs // task.shards * task.horizon
    return {
        "mode": "full",
        "skip": False,  # `async.skip` is newer than these runs
        "train": {"max_staleness": setting.lag},
        "rollout": {"shards": task.shards},
        "advanced": {
            "balance": setting.balance,
            "normalization": "running",
            "proximal": setting.proximal or RECOMPUTED_ANCHOR,
        },
        "streamer": {"micro_batch_size": piece}
        | {name: value for name, value in setting.streamer.items() if name != "steps"},
    }


def settings_of(task: Task, recipe: Recipe, block: Mapping[str, Any], seed: int) -> LocalSettings:
    """Return local settings that train as RLinf does: horizons end episodes, and every episode weighs the
    same.
    """
    step = task.envs * task.horizon // OPTIMIZER_STEPS
    return LocalSettings(
        algorithm=recipe.algorithm,
        asynchrony=checked_config(block),
        total_envs=task.envs,
        horizon=task.horizon,
        batches=recipe.batches,
        group_size=recipe.group_size,
        global_batch_size=step,
        micro_batch_size=step,
        update_epoch=recipe.update_epoch,
        lr=recipe.lr,
        value_lr=max(recipe.lr, 1e-3),
        seed=seed,
        horizon_ends=True,
        weighting="episode",
    )


def policy_of(task: Task) -> PolicyFactory:
    """Return the factory of the policy that is trained on a task."""
    policy = TOY_BY_KIND[task.kind].policy if task.kind in TOY_BY_KIND else GaussianPolicy
    return partial(policy, hidden=task.hidden)


def service_times(stated: Mapping[str, Any], setting: Setting, task: Task) -> ServiceTimes:
    """Return the service times of a setting, in units of a rollout of its slowest shard."""
    training = stated["training_share"] if setting.training_share is None else setting.training_share
    return ServiceTimes(
        slowest_decision=1 / task.horizon,
        speeds=tuple((fast, slow) for fast, slow in stated["speeds"]),
        jitter=stated["jitter"],
        inference=stated["inference_share"],
        sample=training / (task.envs * task.horizon),
    )


def begin(task: Task, recipe: Recipe, seed: int) -> tuple[EnvFactory, State]:
    """Return environments and starting weights, both drawn from the seed."""
    of_env = [task.difficulties[task.of_env(env)] for env in range(task.envs)]
    if task.kind in TOY_BY_KIND:
        environments = TOY_BY_KIND[task.kind].environments(of_env, group_size=recipe.group_size, seed=seed)
        return environments, _points(task, seed)
    # Imported here: only Meta-World's own tasks need Meta-World.
    from benchmarks.learning.simulators import mixed_tasks

    start = mixed_start_of(task, seed)
    environments = mixed_tasks(of_env, group_size=recipe.group_size, seed=seed, stats=start.stats)
    return environments, start.weights


def mixed_start_of(task: Task, seed: int, **search: int) -> Start:
    """Return the start of a Meta-World task and a seed, made with `search` if no earlier run has made it."""
    from benchmarks.learning.simulators import MixedStart, mixed_start

    low, high = task.start or (0.0, 1.0)
    settings = MixedStart(
        tasks=task.difficulties, seed=seed, horizon=task.horizon, lowest_success=low, highest_success=high
    )
    return mixed_start(settings, **search)


def _points(task: Task, seed: int) -> State:
    if task.start is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return TOY_BY_KIND[task.kind].fresh_policy(task.hidden).state_dict()
    low, high = task.start
    return points_start(
        PointsStart(
            radii=task.difficulties,
            seed=seed,
            horizon=task.horizon,
            hidden=task.hidden,
            lowest_success=low,
            highest_success=high,
            toy=TOY_BY_KIND[task.kind],
        )
    )


def _curves(result: VirtualResult, task: Task) -> dict[str, Any]:
    by_task, metrics = success_by_task(result.batches, task), result.local.metrics
    return {
        "success": _rounded(np.mean(by_task, axis=0)),
        "success_by_task": [_rounded(values) for values in by_task],
        "mean_lag": _rounded([seen.mean_lag for seen in result.batches]),
        "streamed_share": _rounded([one["train/streamed"] for one in metrics]),
        "gradient_norm": _rounded([one["train/actor/grad_norm"] for one in metrics]),
        "virtual_seconds": _rounded([seen.seconds for seen in result.batches]),
        "trajectories": str(result.local.ledger),
    }


def success_by_task(batches: Sequence[BatchSeen], task: Task) -> list[list[float]]:
    """Return each task's success in each batch; a task without episodes in a batch keeps its last value."""
    curves: list[list[float]] = [[] for _ in task.difficulties]
    for seen in batches:
        for number, curve in enumerate(curves):
            outcomes = [
                solved
                for env, episodes in seen.solved.items()
                if task.of_env(env) == number
                for solved in episodes
            ]
            curve.append(float(np.mean(outcomes)) if outcomes else (curve[-1] if curve else 0.0))
    return curves


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]
