"""What the present policy thinks of actions that were taken, without gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from verl.utils.device import get_device_id

from rlinf_async.core.scores import joined
from rlinf_async.core.tensors import Tree, leaf, map_tensors, size_of, slice_samples
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
    stored = leaf(rollout, "logprobs")
    steps, width = stored.shape[:2]
    inputs, model = flat_inputs(rollout["forward_inputs"]), model_name(engine)
    outputs = list(forward(engine, inputs, micro_batch_size, values=bootstrap is not None))
    scores = {"proximal": joined(outputs, "logprobs", model=model).view(stored.shape)}
    if bootstrap is not None:
        last = list(forward(engine, flat_inputs(bootstrap), micro_batch_size, logprobs=False, values=True))
        scores["values"] = joined([*outputs, *last], "values", model=model).reshape(steps + 1, width)
    return scores


@torch.no_grad()
def forward(
    engine: PolicyEngine, inputs: Tree, micro_batch_size: int, *, logprobs: bool = True, values: bool
) -> Iterator[Mapping[str, torch.Tensor]]:
    """Forward passes over samples [N, ...]; their number depends on N alone, as sharded models require."""
    total = size_of(inputs)
    engine.module.eval()
    for start in range(0, total, micro_batch_size):
        chunk = slice_samples(inputs, start, min(start + micro_batch_size, total))
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
