"""The shards of a model that FSDP has wrapped, of either generation."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def reshard(model: torch.nn.Module) -> None:
    """Free what forward passes have gathered, so that the next gathers what the shards hold by then.

    After a forward pass without a backward pass, FSDP2 leaves its root's parameters gathered, and so does
    FSDP1 (with `shard_grad_op` those of every unit). FSDP1 points its parameters at the shards again, but
    keeps the gathered ones and takes them for the present at the next forward pass or state dict. Between
    passes only; shards that were written to must not be used before.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    for unit in FSDP.fsdp_modules(model):
        handle = unit._handle
        # Before the first forward pass a unit has gathered nothing, and does not know its shard yet.
        if handle is not None and handle.uses_sharded_strategy and hasattr(handle.flat_param, "_local_shard"):
            handle.reshard(free_unsharded_flat_param=True)


class TrainedShards:
    """This rank's shards of the parameters that an RLinf actor trains, now or after a warm-up of its critic.

    RLinf freezes the actor's parameters while the critic warms up. They belong to a policy version
    all the same, so that which parameters there are is decided once.
    """

    def __init__(self, actor: Any) -> None:
        self._model = actor.model
        trained = {name for name, parameter in self._named() if parameter.requires_grad}
        self._names = trained | set(actor.store_requires_grad_param_name)

    def __call__(self) -> list[torch.Tensor]:
        """Tensors to read or write, always in one order; what was gathered of them is forgotten."""
        reshard(self._model)
        parameters = [parameter.detach() for name, parameter in self._named() if name in self._names]
        return [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]

    def _named(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self._model.named_parameters())
