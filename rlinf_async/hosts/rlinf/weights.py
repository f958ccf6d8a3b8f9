"""The weights of an RLinf actor, as inference is to have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from torch.distributed.tensor import DTensor

from rlinf_async.core.host_memory import wait_for
from rlinf_async.hosts.rlinf.shards import reshard
from rlinf_async.ray_runtime.publication.weights import CopiedWeights, Taken, Types

TYPES = {
    **dict.fromkeys(("fp32", "float32"), torch.float32),
    **dict.fromkeys(("fp16", "float16"), torch.float16),
    **dict.fromkeys(("bf16", "bfloat16"), torch.bfloat16),
}
"""RLinf's names of types, in the config."""


class Snapshot(CopiedWeights):
    """The weights of an RLinf actor, as they are when `take` is called; a `WeightCopy`.

    What is sent and what the receiver has in the end is what RLinf's own weight syncers would send and
    leave, whatever `weight_syncer.type` says. One tensor at a time is gathered from its shards, so that no
    second copy of the model is made on the device.
    """

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self._actor = actor

    def take(self) -> Taken | None:
        # What a forward pass without gradients has left gathered may be another version's.
        reshard(self._actor.model)
        state = self._actor.get_rollout_state_dict()
        tensors = {
            name: state[name] for name in self.choose(state, changing=set(self._actor.param_names_need_sync))
        }
        places = self.places(tensors, self._types(tensors)) if self._actor._rank == 0 else {}
        for name, shard in tensors.items():
            tensor = whole(shard)
            if places:
                self.write(places[name], tensor)
        wait_for(*tensors.values())
        return self.copied()

    def _types(self, tensors: Mapping[str, torch.Tensor]) -> Types:
        """As RLinf's: the type that its bucket syncer is told to send, else the receiver's."""
        dtype = OmegaConf.select(self._actor.cfg, "weight_syncer.bucket.bucket_dtype")
        if dtype is None or OmegaConf.select(self._actor.cfg, "weight_syncer.type") != "bucket":
            return self.types
        trained = set(self._actor.param_names_need_sync)
        return {**self.types, **dict.fromkeys(trained & tensors.keys(), TYPES[str(dtype).lower()])}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gathered from its shards, if it has some: every rank takes part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
