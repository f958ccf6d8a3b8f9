"""What the present policy thinks of actions that were taken, without gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from verl.utils.device import get_device_id

from rlinf_async.core.scores import joined
from rlinf_async.core.tensors import Tree, concatenate, in_parts, leaf, map_tensors
from rlinf_async.hosts.verl.engine import PolicyEngine


def score_rollout(
    engine: PolicyEngine, rollout: Tree, *, bootstrap: Tree | None, micro_batch_size: int
) -> dict[str, torch.Tensor]:
    """By the present policy: `proximal` log-probabilities in the shape of `logprobs`; `values` [T + 1, B].

    Args:
        rollout: fields of [T, B, ...].
        bootstrap: forward inputs of the last observation, [1, B, ...]; without them there are no values.

    Raises:
        FloatingPointError: a result is not finite; it would end up in the weights.
    """
    inputs = flat_inputs(rollout["forward_inputs"])
    outputs = list(forward(engine, inputs, micro_batch_size, values=bootstrap is not None))
    last = []
    if bootstrap is not None:
        last = list(forward(engine, flat_inputs(bootstrap), micro_batch_size, logprobs=False, values=True))
    valued = [*outputs, *last] if last else []
    return anchored(rollout, outputs, valued, model=model_name(engine))


def anchored(
    rollout: Tree,
    scored: Sequence[Mapping[str, torch.Tensor]],
    valued: Sequence[Mapping[str, torch.Tensor]],
    *,
    model: str,
) -> dict[str, torch.Tensor]:
    """By passes of the anchoring policy: `proximal` in the shape of `logprobs`; `values` [T + 1, B].

    Args:
        scored: passes over the T * B samples, and perhaps over others behind them.
        valued: passes over the (T + 1) * B observations; without them there are no values.
        model: the key of the config that names the policy, and its value.

    Raises:
        FloatingPointError: a result is not finite; it would end up in the weights.
    """
    stored = leaf(rollout, "logprobs")
    steps, width = stored.shape[:2]
    logprobs = joined(scored, "logprobs", model=model)[: steps * width]
    scores = {"proximal": logprobs.view(stored.shape)}
    if valued:
        scores["values"] = joined(valued, "values", model=model).reshape(steps + 1, width)
    return scores


def scoring_inputs(payload: Tree) -> Tree:
    """What inference scores a piece by: its T * B samples and, behind them, its last B observations."""
    bootstrap: Any = payload["bootstrap_inputs"]
    inputs: Any = concatenate([flat_inputs(payload["forward_inputs"]), flat_inputs(bootstrap)])
    return {"forward_inputs": inputs}


@torch.no_grad()
def forward(
    engine: PolicyEngine, inputs: Tree, micro_batch_size: int, *, logprobs: bool = True, values: bool
) -> Iterator[Mapping[str, torch.Tensor]]:
    """Forward passes over samples [N, ...]; their number depends on N alone, as sharded models require."""
    engine.module.eval()
    for chunk in in_parts(inputs, micro_batch_size):
        on_device = map_tensors(lambda tensor: tensor.to(get_device_id()), chunk)
        yield engine.scores(on_device, logprobs=logprobs, values=values)
    engine.module.train()
    # A pass without gradients leaves the outermost unit gathered, whatever is written to its shards next.
    engine.reshard()


def flat_inputs(forward_inputs: Any) -> Tree:
    """Inputs of T * B samples, from a tree of those of [T, B, ...]."""
    return map_tensors(lambda tensor: tensor.flatten(0, 1), forward_inputs)


def model_name(engine: PolicyEngine) -> str:
    """The key that names the policy, and its value."""
    return f"vla.model.model_type={engine.model_config.section['model_type']!r}"
