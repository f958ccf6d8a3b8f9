"""An inference rank for policies with the interface of this package's and RLinf's policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.kit.answers import Answering
from rlinf_async.hosts.kit.examination import Buffers, FirstLook
from rlinf_async.hosts.kit.rebuilds import reseeded
from rlinf_async.ray_runtime.handles import Handle, RequestChannels
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.seeds import seed_everything
from rlinf_async.ray_runtime.publication.weight_file import Tensors


class PolicyWorker(Answering, InferenceWorker):
    """An inference rank in its own process; hosts implement `decide`."""

    _buffers: Buffers | None = None

    def watched_module(self) -> nn.Module | None:
        return self.policy_module()

    async def serve(self, settings: Any, requests: RequestChannels, coordinator: Handle) -> None:
        if self._inference_rank == 0:
            self.first_look = FirstLook(partial(self.remark, what="odd policy"))
        await super().serve(settings, requests, coordinator)

    def _load(self, version: int, data: Sequence[AbstractContextManager[Tensors]]) -> None:
        if self._buffers is not None:
            self._buffers.check()
        super()._load(version, data)
        module = self.watched_module()
        self._buffers = None if module is None else Buffers(module)

    def sample_apart(self, seed: int, asynchrony: AsyncConfig) -> None:
        """Seed the random generators with which this rank samples actions.

        Each rank has its own seed. A run with the same seed and the same batches samples the same actions;
        the replacement of a process that died has another seed.
        """
        # `seed` itself was used for the initial weights, which are the same on every rank.
        own = reseeded(seed + 1 + self._inference_rank, 0, generation=self.generation)
        seed_everything(own)
        # Each policy version is then sampled with its own seed, independent of earlier samples.
        if asynchrony.deterministic:
            self.sampling_seed = own


def scores_of(output: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the fields of a pass that a learner reads, on the CPU."""
    names = ("logprobs", "values", "prev_logprobs")
    return {name: output[name].float().cpu() for name in names if output.get(name) is not None}
