"""What a policy thinks of actions that were taken: exact log-probabilities and values, without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from rlinf.hybrid_engines.fsdp import FSDPModule
from rlinf.utils.nested_dict_process import put_tensor_device

from rlinf_async.core.tensors import Tree, map_tensors, size_of, slice_samples


def recompute(
    actor: Any, rollout: Tree, bootstrap_inputs: Tree, *, micro_batch_size: int, values: bool
) -> None:
    """Add `proximal_logprobs` to `rollout`, and replace `prev_values` when `values`.

    The policy is the actor's present one: the anchor of the update that follows. Values of all T + 1
    observations come from it too, so that advantages are estimated by one policy version.

    Args:
        rollout: fields of [T, B, ...]; `prev_logprobs` gives the shape of the result.
        bootstrap_inputs: forward inputs of the last observation, [B, ...].
    """
    inputs = rollout["forward_inputs"]
    assert isinstance(inputs, dict)
    steps, width = rollout["prev_logprobs"].shape[:2]  # type: ignore[union-attr]
    flat = map_tensors(lambda tensor: tensor.reshape(steps * width, *tensor.shape[2:]), inputs)
    outputs = list(forward(actor, flat, micro_batch_size, logprobs=True, values=values))
    logprobs = torch.cat([output["logprobs"].float().cpu() for output in outputs])
    rollout["proximal_logprobs"] = logprobs.reshape(rollout["prev_logprobs"].shape)  # type: ignore[union-attr]
    if values:
        tail = list(forward(actor, bootstrap_inputs, micro_batch_size, logprobs=False, values=True))
        seen = torch.cat([output["values"].float().cpu() for output in [*outputs, *tail]])
        rollout["prev_values"] = seen.reshape(steps + 1, width, -1)


@torch.no_grad()
def forward(
    actor: Any, inputs: Tree, micro_batch_size: int, *, logprobs: bool, values: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Forward passes over `inputs`; their number depends on sizes alone, as sharded models require."""
    actor.model.eval()
    total = size_of(inputs)
    for start in range(0, total, micro_batch_size):
        chunk = slice_samples(inputs, start, min(start + micro_batch_size, total))
        with actor.amp_context:
            yield actor.model(
                forward_inputs=put_tensor_device(chunk, actor.device),
                compute_logprobs=logprobs,
                compute_entropy=False,
                compute_values=values,
                use_cache=False,
                **actor.forward_kwargs(),
            )
    actor.model.train()


def trained_shards(model: torch.nn.Module) -> list[torch.Tensor]:
    """This rank's shards of the trained parameters, whatever the last forward pass has gathered."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    parameters = [parameter.detach() for parameter in model.parameters() if parameter.requires_grad]
    return [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]
