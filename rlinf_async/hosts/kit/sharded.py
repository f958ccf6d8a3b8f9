"""Policies that FSDP1 or FSDP2 shards over the learner ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import nn

from rlinf_async.core.host_memory import wait_for
from rlinf_async.ray_runtime.publication.weights import Types, WeightCopy, WeightSnapshot


def reshard(model: nn.Module) -> None:
    """Free gathered parameters, so that the next forward pass gathers the present content of the shards.

    After a forward pass without a backward pass, FSDP2 leaves its root's parameters gathered, and so does
    FSDP1 (with `shard_grad_op` those of every unit). FSDP1 points its parameters at the shards again, but
    keeps the gathered ones and reuses them, though outdated, in the next forward pass or state dict. Call
    this between passes only, and between a write to the shards and the next use of the model.
    """
    # Here, as drivers import this module, too, and a second goes into this import.
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    for unit in FSDP.fsdp_modules(model):
        handle = unit._handle
        # Before the first forward pass a unit has gathered no parameters, and has no `_local_shard` yet.
        if handle is not None and handle.uses_sharded_strategy and hasattr(handle.flat_param, "_local_shard"):
            handle.reshard(free_unsharded_flat_param=True)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the full tensor; for a sharded tensor, a collective call."""
    from torch.distributed.tensor import DTensor  # here, as above

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class TrainedShards:
    """This rank's shards of the trained parameters, which make up a policy version.

    The set of parameters is fixed at construction: it includes those that are frozen for now.
    """

    def __init__(self, model: nn.Module, *, frozen_for_now: Collection[str] = ()) -> None:
        self._model = model
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._names = trained | set(frozen_for_now)

    def __call__(self) -> list[torch.Tensor]:
        """Free gathered parameters, and return the shards, to read or write, always in the same order."""
        reshard(self._model)
        named = self._model.named_parameters()
        # Views: writing to them changes the policy.
        parameters = [parameter.detach() for name, parameter in named if name in self._names]
        return [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]


class ShardedWeights(WeightCopy):
    """Copies the weights of a learner rank when `take` is called. Hosts may override `state` and `changing`.

    One tensor at a time is gathered from its shards, so that the device never holds a second copy of the
    model.
    """

    def __init__(self, model: nn.Module, *, sends: bool) -> None:
        super().__init__()
        self._model, self._sends = model, sends

    def state(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors of the policy, sharded or not, by their names on inference ranks."""
        return self._model.state_dict()

    def changing(self, state: Mapping[str, torch.Tensor]) -> Collection[str]:
        """Return the names in `state` of tensors that training changes: buffers, and parameters not
        frozen.
        """
        named = self._model.named_parameters()
        return state.keys() - {name for name, parameter in named if not parameter.requires_grad}

    def types_to_send(self, names: Collection[str]) -> Types:
        """Return the types that tensors are sent in: those of the receivers."""
        return self.types

    def take(self) -> WeightSnapshot | None:
        # Parameters left gathered by a forward pass without gradients may be of an older version.
        reshard(self._model)
        state = self.state()
        tensors = {name: state[name] for name in self.choose(state, changing=self.changing(state))}
        places = self.places(tensors, self.types_to_send(tensors.keys())) if self._sends else {}
        for name, shard in tensors.items():
            # A collective call: ranks that send nothing must gather every tensor as well, in the same order.
            tensor = whole(shard)
            if places:
                self.write(places[name], tensor)
        # Copies to host memory are asynchronous: without this wait a half-written version would be offered.
        wait_for(*tensors.values())
        return self.snapshot()
