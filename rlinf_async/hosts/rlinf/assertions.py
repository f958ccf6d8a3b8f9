"""The assertions that RLinf makes on a config once it has started Ray, made before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.reasons import Reason

COMPARING_TYPES = ("grpo", "grpo_dynamic", "reinpp_baseline")
"""Advantages that compare the members of a group."""
WITH_CRITIC = ("actor_critic", "decoupled_actor_critic")
"""Losses that train a critic too."""


def failing(cfg: Mapping[str, Any]) -> list[Reason]:
    """The assertions that would fail for `cfg` (plain data)."""
    return [*_groups(cfg), *_critic(cfg)]


def _groups(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    kind, size = lookup(cfg, "algorithm.adv_type"), lookup(cfg, "algorithm.group_size")
    if kind in COMPARING_TYPES and (size or 1) < 2:
        yield Reason(
            f"algorithm.adv_type={kind} compares the members of a group, and algorithm.group_size={size}; "
            "use 2 or more, in env.train.group_size too",
            "algorithm.group_size=2",
        )


def _critic(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    loss = lookup(cfg, "algorithm.loss_type")
    if loss in WITH_CRITIC and not lookup(cfg, "actor.model.add_value_head"):
        yield Reason(
            f"algorithm.loss_type={loss} needs a critic: set actor.model.add_value_head=true",
            "actor.model.add_value_head=true",
        )
