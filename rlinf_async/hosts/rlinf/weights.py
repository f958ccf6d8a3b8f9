"""The weights of an RLinf actor, as inference is to have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import OmegaConf
from rlinf.utils.utils import materialize_tensor, normalize_dtype

from rlinf_async.core.host_memory import wait_for
from rlinf_async.hosts.rlinf.shards import reshard
from rlinf_async.ray_runtime.weights import Chunk, Types, chunks_of, places_for


class Snapshot:
    """The weights of an RLinf actor in CPU memory, as they are when `take` is called; a `WeightCopy`.

    What is sent and what the receiver has in the end is what RLinf's own weight syncers would send and
    leave, whatever `weight_syncer.type` says. The first holds all weights, so that the receivers' frozen ones
    are the learner's, too; later ones what RLinf synchronises, parameters that are trained and buffers. One
    tensor at a time is gathered from its shards, so that no second copy of the model is made on the device.
    The memory of later ones is allocated once, page-locked beside an accelerator, and written again by each
    `take`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._memory: Chunk = {}
        self._complete = False
        self.types: Types = {}

    def take(self) -> list[Chunk]:
        """The weights in chunks of bounded size; nothing on ranks that do not send."""
        # What a forward pass without gradients has left gathered may be another version's.
        reshard(self._actor.model)
        state = self._actor.get_rollout_state_dict()
        state_sent = {name: state[name] for name in self._names(state)}
        if not state_sent:
            raise ValueError(f"none of the learner's {len(state)} tensors has a name that inference knows")
        sends = self._actor._is_weight_sender
        memory = places_for(state_sent, self._types(state_sent), self._memory) if sends else {}
        for name, shard in state_sent.items():
            tensor = materialize_tensor(shard)  # every rank takes part
            if memory:
                place = memory[name]
                place.copy_(tensor.detach().to(place.dtype), non_blocking=True)  # converted on its own device
        wait_for(*state_sent.values())
        self._complete = True
        self._memory = memory if memory.keys() == set(self._names(state)) else {}
        return chunks_of(memory)

    def _names(self, state: Mapping[str, torch.Tensor]) -> list[str]:
        trained = set(self._actor.param_names_need_sync)
        return [
            name
            for name in state
            if "_extra_state" not in name
            and (not self._complete or name in trained)
            and (not self.types or name in self.types)
        ]

    def _types(self, chosen: Mapping[str, torch.Tensor]) -> Types:
        """As RLinf's: the type that its bucket syncer is told to send, else the receiver's."""
        dtype = OmegaConf.select(self._actor.cfg, "weight_syncer.bucket.bucket_dtype")
        if dtype is None or OmegaConf.select(self._actor.cfg, "weight_syncer.type") != "bucket":
            return self.types
        trained = set(self._actor.param_names_need_sync)
        return {**self.types, **dict.fromkeys(trained & chosen.keys(), normalize_dtype(dtype))}
