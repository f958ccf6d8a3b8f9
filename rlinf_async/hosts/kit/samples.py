"""The samples of a rollout: pieces joined for a learner, the samples that are scored, and those that have a
gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlinf_async.core.packing import row_parts
from rlinf_async.core.scores import INPUTS_FIELD, ToScore
from rlinf_async.core.tensors import BEYOND_FIELD, Tree, concatenate, leaf, lengthened, map_tensors, size_of

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


SAMPLE_FIELDS = (INPUTS_FIELD, "prev_logprobs")
"""Fields of a rollout that scoring needs."""

LIVE_FIELD = "live"
"""The field, [T, B] bool, with the samples that have a gradient; only these are scored. A rollout without the
field has a gradient everywhere."""

PROXIMAL_FIELD = "proximal_logprobs"
"""The field of log-probabilities of the proximal policy."""


def samples_of(rollout: Tree, *more: str) -> Tree:
    """Return the samples of a rollout that can be scored, with fields `more`: [T * B, ...]."""
    return flat({name: rollout[name] for name in (*SAMPLE_FIELDS, *more)})


def flat(tree: Any) -> Tree:
    """Return tensors of [T, B, ...] as those of T * B samples."""
    return map_tensors(lambda tensor: tensor.flatten(0, 1), tree)


def scoring_inputs(payload: Tree, live: torch.Tensor | None = None, *, values: bool = True) -> ToScore:
    """Return the samples of a piece for inference to score: T * B decisions, then B last observations.

    Args:
        live: the decisions with a gradient, [horizon, B] bool; None: all.
        values: True if values are scored, which include those of the last observations.
    """
    samples, last = samples_of(payload), last_observations(payload, flat(payload[BEYOND_FIELD]))
    size = size_of(samples) + size_of(last)
    if live is None:
        return ToScore(samples=concatenate([samples, last]), rows=None, size=size)
    rows = scored_rows(live, values=values)
    # A piece ends with its last episode, before the horizon: no later decision is live.
    rows = rows[rows < size]
    (chosen,) = row_parts(rows, 1, samples, last)
    return ToScore(samples=chosen, rows=rows, size=size)


def fields_without_inputs(payload: Tree, horizon: int) -> Tree:
    """Return the fields of a piece that tell which samples are live, extended to `horizon` decisions: all
    fields but the policy's inputs.
    """
    large = (INPUTS_FIELD, BEYOND_FIELD)
    return to_the_horizon({name: field for name, field in payload.items() if name not in large}, horizon)


def scored_rows(live: torch.Tensor, *, values: bool) -> torch.Tensor:
    """Return the ascending row numbers of the samples to score, if those of `live`, [T, B] bool, have a
    gradient.

    With `values`, the rows are of T + 1 observations.
    """
    # The last observation bootstraps the episodes that are alive until then.
    return torch.cat([live, live[-1:]] if values else [live]).flatten().nonzero().flatten()


def last_observations(rollout: Tree, inputs: Any) -> Tree:
    """Return the last observations as samples. Their other fields are arbitrary: only their value is read."""
    return {INPUTS_FIELD: inputs, "prev_logprobs": leaf(rollout, "prev_logprobs")[-1]}
