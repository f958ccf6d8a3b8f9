"""A run on the local host: all loops in one process, simulators in child processes."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import torch

from benchmarks.learning.cells import (
    ACTION_REPEAT,
    ENV_COUNT,
    HORIZON_DECISIONS,
    RECIPE_BY_ALGORITHM,
    Cell,
    Curve,
    write,
)
from rlinf_async.config.checked import checked_config
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.lab.demo.local_metaworld import metaworld
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings
from rlinf_async.lab.demo.warm_start import warm_start
from rlinf_async.lab.demo.warm_start_settings import WarmStart

WARM_STARTS = Path("runs/warm_starts")
"""Folder of cloned starting policies, shared with RLinf's runs: both hosts start from the same ones."""


def settings_of(cell: Cell) -> LocalSettings:
    """Return the local settings that correspond to the cell's config in RLinf."""
    return LocalSettings(
        algorithm=cell.algorithm,
        asynchrony=checked_config(cell.asynchrony),
        total_envs=ENV_COUNT,
        horizon=HORIZON_DECISIONS,
        batches=cell.batches,
        global_batch_size=160,
        micro_batch_size=160,
        seed=cell.seed,
        # RLinf's choices, so that both hosts train by the same loss.
        horizon_ends=True,
        weighting="episode",
        **RECIPE_BY_ALGORITHM[cell.algorithm],
    )


def run(cell: Cell) -> None:
    """Train the cell and write its curve."""
    torch.set_num_threads(1)
    settings = settings_of(cell)
    start = warm_start(WarmStart(task_name=cell.task, seed=cell.seed), WARM_STARTS)
    task = TaskSettings(cell.task, max_episode_steps=HORIZON_DECISIONS, action_repeat=ACTION_REPEAT)
    environments = metaworld(
        task,
        obs_stats=start.obs_stats_path,
        group_size=settings.group_size,
        seed=cell.seed,
        processes=1,
    )
    weights = torch.load(start.policy_path)
    result = LocalTrainer(settings, environments, GaussianPolicy, weights=weights).run()
    curve = Curve(
        env_steps=list(accumulate(report.env_steps * ACTION_REPEAT for report in result.reports)),
        seconds=list(accumulate(report.seconds for report in result.reports)),
        success=[metrics["env/success_once"] for metrics in result.metrics],
        returns=[metrics["env/return"] for metrics in result.metrics],
        staleness=[report.staleness.mean for report in result.reports],
    )
    write(cell, curve, {"warm_start_success": start.success, "trajectories": str(result.ledger)})
