"""An inference rank whose policy says of its actions what this package's and RLinf's policies do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.kit.answers import Answering
from rlinf_async.hosts.kit.examination import Buffers, FirstLook
from rlinf_async.hosts.simulators import reseeded
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.run_process import seed_everything
from rlinf_async.ray_runtime.publication.weight_file import Tensors


class PolicyWorker(Answering, InferenceWorker):
    """An inference rank in a process of its own; a host gives the decisions of its policy."""

    _buffers: Buffers | None = None

    def watched_module(self) -> nn.Module | None:
        return self.policy_module()

    async def serve(self, settings: Any, requests: Handle, coordinator: Handle) -> None:
        if self._inference_rank == 0:
            self.first_look = FirstLook(self.remark)
        await super().serve(settings, requests, coordinator)

    def _load(self, version: int, data: Sequence[AbstractContextManager[Tensors]]) -> None:
        if self._buffers is not None:
            self._buffers.check()
        super()._load(version, data)
        module = self.watched_module()
        self._buffers = None if module is None else Buffers(module)

    def sample_apart(self, seed: int, asynchrony: AsyncConfig) -> None:
        """Seed what this rank samples from now on.

        Ranks sample apart, and a run with the same seed and the same batches samples the same; what takes
        the place of a process that has died does not sample what that one did.
        """
        # `seed` itself has drawn the first weights, which are the same on every rank.
        own = reseeded(seed + 1 + self._inference_rank, 0, generation=self.generation)
        seed_everything(own)
        # From then on every version is sampled by a seed of its own, whatever was sampled before it.
        if asynchrony.deterministic:
            self.sampling_seed = own
