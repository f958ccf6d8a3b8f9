"""The weights of an RLinf actor that are published to inference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from omegaconf import OmegaConf

from rlinf_async.core.precision import precision_of
from rlinf_async.hosts.kit.sharded import ShardedWeights
from rlinf_async.ray_runtime.publication.weights import Types

TYPES_OF_PRECISION = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Snapshot(ShardedWeights):
    """Copies the weights of an RLinf actor.

    The sent tensors, and the receiver's weights in the end, are the same as with RLinf's own weight syncers
    of any `weight_syncer.type`.
    """

    def __init__(self, actor: Any) -> None:
        # Only rank 0 sends, as in RLinf (`_is_weight_sender`).
        super().__init__(actor.model, sends=actor._rank == 0)
        self._actor = actor

    def state(self) -> Mapping[str, torch.Tensor]:
        return self._actor.get_rollout_state_dict()

    def changing(self, state: Mapping[str, torch.Tensor]) -> Collection[str]:
        return set(self._actor.param_names_need_sync)

    def types_to_send(self, names: Collection[str]) -> Types:
        """Return the types as in RLinf: that of its bucket syncer, if one is configured, else the
        receiver's.
        """
        dtype = OmegaConf.select(self._actor.cfg, "weight_syncer.bucket.bucket_dtype")
        # Only RLinf's bucket syncer reads the key (`weight_syncer/base.py`).
        if dtype is None or OmegaConf.select(self._actor.cfg, "weight_syncer.type") != "bucket":
            return self.types
        trained = set(self._actor.param_names_need_sync).intersection(names)
        return {**self.types, **dict.fromkeys(trained, TYPES_OF_PRECISION[precision_of(str(dtype).lower())])}
