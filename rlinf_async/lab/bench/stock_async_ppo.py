"""RLinf's own asynchronous PPO on machines without CUDA, so that every machine can make the comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from omegaconf import DictConfig
from rlinf.runners.async_ppo_embodied_runner import AsyncPPOEmbodiedRunner
from rlinf.workers.actor import async_ppo_fsdp_worker
from rlinf.workers.actor.async_ppo_fsdp_worker import AsyncPPOEmbodiedFSDPActor
from rlinf.workers.env.async_env_worker import AsyncEnvWorker
from rlinf.workers.rollout.hf.async_huggingface_worker import AsyncMultiStepRolloutWorker

from rlinf_async.hosts.rlinf.train import launch


def train_stock_async_ppo(cfg: DictConfig) -> None:
    """Run `cfg` as RLinf's script for its own asynchronous PPO does."""
    launch(
        cfg,
        AsyncPPOEmbodiedRunner,
        actor=AnywhereAsyncPPOActor,
        rollout=AsyncMultiStepRolloutWorker,
        env=AsyncEnvWorker,
    )


class AnywhereAsyncPPOActor(AsyncPPOEmbodiedFSDPActor):
    """RLinf's worker; device names in its code are read as this process's device."""

    def run_training(self) -> dict[str, Any]:
        with _cuda_means(self.device):
            return super().run_training()


@contextmanager
def _cuda_means(device: object) -> Iterator[None]:
    """Within the block, let `cuda:<rank>` and `Tensor.cuda()` mean `device`; with CUDA, change nothing."""
    if torch.cuda.is_available():
        yield
        return
    put = async_ppo_fsdp_worker.put_tensor_device
    with (
        patch.object(async_ppo_fsdp_worker, "put_tensor_device", lambda data, _: put(data, device)),
        patch.object(torch.cuda, "current_device", lambda: device),
        patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor),
    ):
        yield
