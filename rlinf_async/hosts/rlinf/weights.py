"""The weights of an RLinf actor: its shards of what is trained, and what inference is to have.

FSDP of either generation may have wrapped the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor import DTensor

from rlinf_async.core.host_memory import wait_for
from rlinf_async.hosts.footprints import precision_of
from rlinf_async.ray_runtime.publication.weights import Types, WeightCopy, WeightSnapshot

TYPES_OF_PRECISION = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


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
        trained = {name for name, parameter in self._parameters() if parameter.requires_grad}
        # RLinf's `build_optimizer` notes here what it freezes until the critic is warm.
        self._names = trained | set(actor.store_requires_grad_param_name)

    def __call__(self) -> list[torch.Tensor]:
        """Tensors to read or write, always in one order; what was gathered of them is forgotten."""
        reshard(self._model)
        parameters = [parameter.detach() for name, parameter in self._parameters() if name in self._names]
        return [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]

    def _parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return list(self._model.named_parameters())


class Snapshot(WeightCopy):
    """The weights of an RLinf actor, as they are when `take` is called.

    What is sent and what the receiver has in the end is what RLinf's own weight syncers would send and
    leave, whatever `weight_syncer.type` says. One tensor at a time is gathered from its shards, so that no
    second copy of the model is made on the device.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self._actor = actor

    def take(self) -> WeightSnapshot | None:
        # What a forward pass without gradients has left gathered may be another version's.
        reshard(self._actor.model)
        state = self._actor.get_rollout_state_dict()
        tensors = {
            name: state[name] for name in self.choose(state, changing=set(self._actor.param_names_need_sync))
        }
        # Rank 0 alone has memory to send from, as in RLinf (`_is_weight_sender`).
        places = self.places(tensors, self._types(tensors)) if self._actor._rank == 0 else {}
        for name, shard in tensors.items():
            # A collective call: ranks that only take part gather every tensor, too, and in the same order.
            tensor = whole(shard)
            if places:
                self.write(places[name], tensor)
        # Copies to host memory run beside this thread: without it a version would be offered half written.
        wait_for(*tensors.values())
        return self.snapshot()

    def _types(self, tensors: Mapping[str, torch.Tensor]) -> Types:
        """As RLinf's: the type that its bucket syncer is told to send, else the receiver's."""
        dtype = OmegaConf.select(self._actor.cfg, "weight_syncer.bucket.bucket_dtype")
        # RLinf's bucket syncer alone reads the key (`weight_syncer/base.py`).
        if dtype is None or OmegaConf.select(self._actor.cfg, "weight_syncer.type") != "bucket":
            return self.types
        trained = set(self._actor.param_names_need_sync)
        return {
            **self.types,
            **dict.fromkeys(trained & tensors.keys(), TYPES_OF_PRECISION[precision_of(str(dtype).lower())]),
        }


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gathered from its shards, if it has some: every rank takes part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
