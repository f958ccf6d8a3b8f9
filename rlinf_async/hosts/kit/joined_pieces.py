"""Joins the pieces of rollouts for a learner."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_async.core.tensors import Tree, concatenate, leaf, lengthened
from rlinf_async.hosts.kit.pieces import BEYOND_FIELD

REWARDS_FIELD = "rewards"


def side_by_side(payloads: Sequence[Tree], horizon: int) -> Tree:
    """Join pieces along B into fields of a rollout of `horizon` decisions, [T, B, ...] or [T + 1, B, ...].

    The last decision of a shorter piece is repeated up to the horizon, without a reward: all episodes of the
    piece have ended, and the loss masks the repeated rows.
    """
    return concatenate([to_the_horizon(payload, horizon) for payload in payloads], dim=1)


def to_the_horizon(payload: Tree, horizon: int) -> Tree:
    """Return the fields of a piece, extended to `horizon` decisions."""
    missing = horizon - len(leaf(payload, "prev_logprobs"))
    if not missing:
        return payload
    beyond = {name: payload[name] for name in (BEYOND_FIELD,) if name in payload}
    longer = lengthened({name: field for name, field in payload.items() if name not in beyond}, missing)
    rewards = leaf(longer, REWARDS_FIELD)
    rewards[len(rewards) - missing :] = 0
    return longer | beyond
