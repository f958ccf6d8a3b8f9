"""RLinf's `reward` section: who scores what environments show, how, and what does not go with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.reasons import Reason

PER_STEP, TERMINAL, HISTORY = "per_step", "terminal", "history_buffer"
MODES = (PER_STEP, TERMINAL, HISTORY)
"""RLinf's `reward.reward_mode`: the model scores what every decision led to, only ends of episodes, or what
was seen up to every decision."""


def scored_by_workers(cfg: Mapping[str, Any]) -> bool:
    """Return True if RLinf's reward workers score what environments show; a robot's asks one by itself."""
    return bool(lookup(cfg, "reward.use_reward_model")) and not lookup(cfg, "reward.standalone_realworld")


def unserved_rewards(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield why the rewards that `cfg` (plain data) asks for cannot be had."""
    if not scored_by_workers(cfg):
        return
    placed = ",".join(lookup(cfg, "cluster.component_placement") or ())
    if "reward" not in [name.strip() for name in placed.split(",")]:
        yield Reason(
            "reward.use_reward_model=True needs reward workers, and cluster.component_placement places no "
            "reward; add it, such as cluster.component_placement.reward: 0-0, or set "
            "reward.use_reward_model=false",
            "+cluster.component_placement.reward=0-0",
        )
    goes_on = lookup(cfg, "env.train.auto_reset") and (lookup(cfg, "env.train.rollout_epoch") or 1) > 1
    if (
        goes_on
        and lookup(cfg, "reward.reward_mode") == HISTORY
        and lookup(cfg, "reward.history_reward_assign")
    ):
        yield Reason(
            "async does not support reward.history_reward_assign=True with env.train.auto_reset=True and "
            f"env.train.rollout_epoch={lookup(cfg, 'env.train.rollout_epoch')}: a reward would belong to "
            "decisions of the rollout before, which has been handed over; set env.train.rollout_epoch=1, "
            "with as many times more of env.train.total_num_envs",
            "env.train.rollout_epoch=1",
        )


def misfits(cfg: Mapping[str, Any], workers: int) -> Iterator[Reason]:
    """Yield why `workers` reward workers are refused by RLinf."""
    total = int(lookup(cfg, "env.train.total_num_envs"))
    if scored_by_workers(cfg) and workers and total % workers:
        yield Reason(
            f"env.train.total_num_envs={total} must be a multiple of the {workers} reward workers that "
            "cluster.component_placement.reward places"
        )
