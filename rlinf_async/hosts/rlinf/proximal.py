"""What a policy thinks of actions that were taken: exact log-probabilities and values, without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from rlinf.utils.nested_dict_process import put_tensor_device

from rlinf_async.core.scores import joined
from rlinf_async.core.tensors import Tree, leaf, map_tensors, size_of, slice_samples

SAMPLE = ("forward_inputs", "prev_logprobs")
"""Fields of a rollout that make a sample which can be scored again."""


def recompute(
    actor: Any, rollout: Tree, bootstrap_inputs: Tree, *, micro_batch_size: int, values: bool
) -> None:
    """Add `proximal_logprobs` to `rollout`, and replace `prev_values` when `values`.

    The policy is the actor's present one: the anchor of the update that follows. Values of all T + 1
    observations come from it too, so that advantages are estimated by one policy version.

    A model that stores the log-probabilities of every denoise step scores one of them, and returns which
    of the stored ones belong to it: those become `acted_logprobs`.

    Args:
        rollout: fields of [T, B, ...].
        bootstrap_inputs: forward inputs of the last observation, [B, ...].

    Raises:
        FloatingPointError: a result is not finite; it would end up in the weights.
    """
    steps, width = leaf(rollout, "prev_logprobs").shape[:2]
    model = model_name(actor.cfg)
    outputs = list(forward(actor, samples_of(rollout), micro_batch_size, logprobs=True, values=values))
    _add(rollout, "proximal_logprobs", joined(outputs, "logprobs", model=model))
    if "prev_logprobs" in outputs[0]:
        _add(rollout, "acted_logprobs", joined(outputs, "prev_logprobs", model=model))
    if values:
        # Whatever was stored goes with it: of the last observation only the value is wanted.
        last: Tree = {
            "forward_inputs": bootstrap_inputs,
            "prev_logprobs": leaf(rollout, "prev_logprobs")[-1],
        }
        tail = list(forward(actor, last, micro_batch_size, logprobs=False, values=True))
        rollout["prev_values"] = joined([*outputs, *tail], "values", model=model).reshape(
            steps + 1, width, -1
        )


def samples_of(rollout: Tree, *more: str) -> Tree:
    """What `forward` scores of a rollout of [T, B, ...], and fields `more`: [T * B, ...]."""
    return map_tensors(
        lambda tensor: tensor.flatten(0, 1), {name: rollout[name] for name in (*SAMPLE, *more)}
    )


@torch.no_grad()
def forward(
    actor: Any, samples: Tree, micro_batch_size: int, *, logprobs: bool, values: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Forward passes over `samples`; their number depends on sizes alone, as sharded models require."""
    actor.model.eval()
    total = size_of(samples)
    for start in range(0, total, micro_batch_size):
        chunk = slice_samples(samples, start, min(start + micro_batch_size, total))
        on_device = put_tensor_device(chunk, actor.device)
        with actor.amp_context:
            yield actor.model(
                forward_inputs=on_device["forward_inputs"],
                compute_logprobs=logprobs,
                compute_entropy=False,
                compute_values=values,
                use_cache=False,
                **actor.forward_kwargs(on_device["prev_logprobs"]),
            )
    actor.model.train()


def _add(rollout: Tree, name: str, flat: torch.Tensor) -> None:
    steps, width = leaf(rollout, "prev_logprobs").shape[:2]
    rollout[name] = flat.reshape(steps, width, *flat.shape[1:])


def model_name(cfg: Any) -> str:
    """The key that names the model, and its value."""
    return f"actor.model.model_type={cfg.actor.model.model_type!r}"
