"""Scores by the present policy of actions that were taken, without gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from verl.utils.device import get_device_id

from rlinf_async.core.scores import in_passes, joined
from rlinf_async.core.tensors import Tree, concatenate, leaf, map_tensors
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
    inputs, values = flat_inputs(rollout["forward_inputs"]), bootstrap is not None
    beyond = [flat_inputs(bootstrap)] if values else []
    outputs = list(forward(engine, in_passes(micro_batch_size, inputs, *beyond), values=values))
    return anchored(rollout, outputs, values=values, model=model_name(engine))


def anchored(
    rollout: Tree,
    scored: Sequence[Mapping[str, torch.Tensor]],
    *,
    values: bool,
    model: str,
) -> dict[str, torch.Tensor]:
    """By passes of the anchoring policy: `proximal` in the shape of `logprobs`; and `values`, [T + 1, B].

    Args:
        scored: passes over the T * B samples and, for values, over the last B observations behind them.
        model: the key of the config that names the policy, and its value.

    Raises:
        FloatingPointError: a result is not finite; it would end up in the weights.
    """
    stored = leaf(rollout, "logprobs")
    steps, width = stored.shape[:2]
    logprobs = joined(scored, "logprobs", first=steps * width, model=model)
    scores = {"proximal": logprobs.view(stored.shape)}
    if values:
        flat = joined(scored, "values", first=(steps + 1) * width, model=model)
        scores["values"] = flat.reshape(steps + 1, width)
    return scores


def scoring_inputs(payload: Tree) -> Tree:
    """Return the samples by which inference scores a piece: its T * B decisions and, behind them, its last
    B observations.
    """
    bootstrap: Any = payload["bootstrap_inputs"]
    inputs: Any = concatenate([flat_inputs(payload["forward_inputs"]), flat_inputs(bootstrap)])
    return {"forward_inputs": inputs}


@torch.no_grad()
def forward(
    engine: PolicyEngine, parts: Iterable[Tree], *, values: bool
) -> Iterator[Mapping[str, torch.Tensor]]:
    """A pass over each of `parts`, [N, ...], of which sharded models require equally many on every rank."""
    engine.module.eval()
    for chunk in parts:
        on_device = map_tensors(lambda tensor: tensor.to(get_device_id()), chunk)
        yield engine.scores(on_device, values=values)
    engine.module.train()
    # A pass without gradients leaves the outermost unit gathered, whatever is written to its shards next.
    engine.reshard()


def flat_inputs(forward_inputs: Any) -> Tree:
    """Inputs of T * B samples, from a tree of those of [T, B, ...]."""
    return map_tensors(lambda tensor: tensor.flatten(0, 1), forward_inputs)


def model_name(engine: PolicyEngine) -> str:
    """The key that names the policy, and its value."""
    return f"vla.model.model_type={engine.model_config.section['model_type']!r}"
