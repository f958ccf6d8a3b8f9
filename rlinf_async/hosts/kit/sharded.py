"""Policies whose parameters are sharded over the learner ranks, by FSDP of either generation."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from rlinf_async.core.host_memory import wait_for
from rlinf_async.ray_runtime.publication.weights import Types, WeightCopy, WeightSnapshot


def reshard(model: nn.Module) -> None:
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


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gathered from its shards, if it has some: every rank takes part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


class TrainedShards:
    """This rank's shards of the parameters that are trained, which make a policy version.

    Which parameters there are is decided once: one that is frozen for a while belongs to a version all the
    same.
    """

    def __init__(self, model: nn.Module, *, frozen_for_now: Collection[str] = ()) -> None:
        self._model = model
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._names = trained | set(frozen_for_now)

    def __call__(self) -> list[torch.Tensor]:
        """Tensors to read or write, always in one order; what was gathered of them is forgotten."""
        reshard(self._model)
        named = self._model.named_parameters()
        # Views: a write to them changes the policy.
        parameters = [parameter.detach() for name, parameter in named if name in self._names]
        return [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]


class ShardedWeights(WeightCopy):
    """The weights of a learner rank, as they are when `take` is called. A host gives its state and what of it
    training changes.

    One tensor at a time is gathered from its shards, so that no second copy of the model is made on the
    device.
    """

    def __init__(self, model: nn.Module, *, sends: bool) -> None:
        super().__init__()
        self._model, self._sends = model, sends

    def state(self) -> Mapping[str, torch.Tensor]:
        """Return the tensors of the policy by the names that inference has for them, sharded or not."""
        return self._model.state_dict()

    def changing(self, state: Mapping[str, torch.Tensor]) -> Collection[str]:
        """Return the names in `state` of what training changes: all but frozen parameters."""
        # Buffers may change, too.
        named = self._model.named_parameters()
        return state.keys() - {name for name, parameter in named if not parameter.requires_grad}

    def types_to_send(self, names: Collection[str]) -> Types:
        """Return the types in which tensors are sent: those of the receivers."""
        return self.types

    def take(self) -> WeightSnapshot | None:
        # What a forward pass without gradients has left gathered may be another version's.
        reshard(self._model)
        state = self.state()
        tensors = {name: state[name] for name in self.choose(state, changing=self.changing(state))}
        places = self.places(tensors, self.types_to_send(tensors.keys())) if self._sends else {}
        for name, shard in tensors.items():
            # A collective call: ranks that only take part gather every tensor, too, and in the same order.
            tensor = whole(shard)
            if places:
                self.write(places[name], tensor)
        # Copies to host memory run beside this thread: without it a version would be offered half written.
        wait_for(*tensors.values())
        return self.snapshot()
