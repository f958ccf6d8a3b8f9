"""RLinf's rollout worker, answering env shards in dynamic batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker

from rlinf_async.core.tracing import BusyMeter
from rlinf_async.hosts.rlinf.config import resolve
from rlinf_async.hosts.rlinf.echoes import without_echoes
from rlinf_async.hosts.rlinf.host import WRONG_RUNNER, InstallsPlugin
from rlinf_async.hosts.rlinf.memory import readable
from rlinf_async.hosts.rlinf.observed import Observed
from rlinf_async.hosts.rlinf.padding import pad, padded_size, trim
from rlinf_async.hosts.rlinf.placement import COMPONENTS
from rlinf_async.hosts.rlinf.request_channel import RequestServer
from rlinf_async.hosts.rlinf.settings import Settings
from rlinf_async.hosts.rlinf.threads import hand_over_quickly
from rlinf_async.hosts.rlinf.weights import WeightClient, apply, types_of
from rlinf_async.hosts.rlinf.wire import fetch
from rlinf_async.loops.env import together
from rlinf_async.loops.inference import refresh_weights, serve_policy
from rlinf_async.loops.request_broker import Pending


def seed_everything(seed: int) -> None:
    """Seed what models sample with: those that match flows draw the denoise step from `random`."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class BatchingRolloutWorker(InstallsPlugin, Observed, MultiStepRolloutWorker):
    """One inference rank. Weights change between forward passes, never inside one."""

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        hand_over_quickly()
        self._model_lock = asyncio.Lock()
        self._busy = BusyMeter()
        self._buckets: tuple[int, ...] = ()
        self._thread = ThreadPoolExecutor(
            1,
            thread_name_prefix="inference",
            initializer=self.torch_platform.set_device,
            initargs=(self.device,),
        )

    def init_worker(self) -> None:
        # RLinf captures graphs of as many environments as its own loop would bring together; batches of
        # ours are padded to one size. There are no graphs to capture without CUDA.
        self.enable_cuda_graph = self.enable_cuda_graph and self.torch_device_type == "cuda"
        if self.enable_cuda_graph:
            sizes = {name: self.placement.get_world_size(name) for name in COMPONENTS}
            (size,) = resolve(self.cfg, sizes=sizes).buckets
            self.per_node_train_batch_size = self.per_node_eval_batch_size = size
        seed = int(self.cfg.actor.get("seed", 0))
        # Weights that no checkpoint gives and that are not trained are never sent: drawn as the learner does.
        torch.manual_seed(seed)
        super().init_worker()
        # Ranks sample apart, and a run with the same seed and the same batches samples the same.
        seed_everything(seed + 1 + self._rank)

    async def generate(self, *_: Any, **__: Any) -> None:
        """RLinf's own loop, which does not run here."""
        raise RuntimeError(WRONG_RUNNER)

    async def serve(self, settings: Settings, requests: Any, trajectories: Any) -> None:
        """Answer batches of requests, by the newest weights, until the channels close."""
        self._buckets = settings.buckets
        server = RequestServer(requests, rank=self._rank)
        loops = [serve_policy(requests=server, policy=self, spans=self.spans)]
        if settings.publishes_beside_training:
            weights = WeightClient(trajectories, rank=self._rank)
            loops.append(refresh_weights(weights=weights, policy=self, spans=self.spans))
        await together(loops)

    async def reads(self, places: list[list[Any]]) -> list[bool]:
        """Which of the env workers' memory this process can read; see `MemoryPool`."""
        return [readable(place) for place in places]

    async def act(self, batch: Sequence[Pending]) -> list[dict[str, Any]]:
        """One answer per request: the fields of RLinf's `RolloutResult`, the `version` that made it, and the
        `echoes` among its `forward_inputs`."""
        payloads = await fetch([pending.request.payload for pending in batch])
        async with self._model_lock:
            with self._busy.busy():
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._thread, self._answer, list(batch), payloads)

    async def weight_types(self) -> dict[str, torch.dtype]:
        """What weights the policy takes, by name."""
        return types_of(self.hf_model)

    async def load(self, version: int, data: Sequence[dict[str, Any]]) -> None:
        """Write new weights into the policy, between two forward passes and in their thread."""
        async with self._model_lock:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._load, version, data)

    def _load(self, version: int, chunks: Sequence[dict[str, Any]]) -> None:
        """What RLinf's `sync_model_from_actor` does with the weights that it has received."""
        apply(self.hf_model, chunks)
        self.version = version
        if self.finished_episodes is None:
            self.finished_episodes = self.version * self.total_num_train_envs * self.rollout_epoch
        self.set_global_step(self.version)
        self._come_back()

    async def leave(self) -> None:
        """Off the accelerator, if RLinf's config says so, until there are new weights."""
        if self.enable_offload:
            async with self._model_lock:
                with self.spans.span("offload"):
                    await asyncio.get_running_loop().run_in_executor(self._thread, self.offload_model)

    def _come_back(self) -> None:
        if self.enable_offload:
            with self.spans.span("offload"):
                self.reload_model()

    async def sync_model_from_actor(self) -> None:
        """Receive and apply the actor's weights by RLinf's transport while no forward pass runs."""
        async with self._model_lock:
            with self.spans.span("load"):
                await super().sync_model_from_actor()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._come_back)

    async def pop_busy(self) -> list[float]:
        """The share of time spent in forward passes since the last call."""
        return self._busy.pop()

    def _answer(self, batch: list[Pending], payloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        for mode in ("train", "eval"):
            chosen = [index for index, pending in enumerate(batch) if pending.request.mode == mode]
            if chosen:
                sizes = [batch[index].size for index in chosen]
                answers.update(
                    zip(chosen, self._forward([payloads[i] for i in chosen], sizes, mode), strict=True)
                )
        return [answers[index] for index in range(len(batch))]

    def _forward(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[dict[str, Any]]:
        size = sum(sizes)
        actions, result = self.predict(self._padded(payloads, size), mode=mode)
        # A captured graph writes the next answer where this one is.
        actions, result = (trim(value, size, copy=self.enable_cuda_graph) for value in (actions, result))
        parts: dict[str, list[Any]] = {"actions": list(torch.split(actions, sizes))}
        if mode == "train":
            for name in ("prev_logprobs", "prev_values"):
                value = result.get(name)
                parts[name] = [None] * len(sizes) if value is None else list(torch.split(value, sizes))
            inputs = {name: torch.split(value, sizes) for name, value in result["forward_inputs"].items()}
            kept = [
                without_echoes({name: pieces[index] for name, pieces in inputs.items()}, payload["obs"])
                for index, payload in enumerate(payloads)
            ]
            parts["forward_inputs"], parts["echoes"] = map(list, zip(*kept, strict=True))
            parts["bootstrap_values"] = self._bootstrap_values(payloads, sizes)
        return [
            {"version": int(self.version), **{name: values[index] for name, values in parts.items()}}
            for index in range(len(sizes))
        ]

    def _padded(self, payloads: list[dict[str, Any]], size: int) -> dict[str, Any]:
        """The observations of a batch, as many as its bucket holds."""
        observations: dict[str, Any] = self._merge_obs_batches(payloads)["obs"]
        wanted = padded_size(size, self._buckets)
        return pad(observations, wanted) if wanted > size else observations

    def _bootstrap_values(
        self, payloads: list[dict[str, Any]], sizes: list[int]
    ) -> list[torch.Tensor | None]:
        """Values of final observations, for the shards whose episodes have just ended, and for no others."""
        ended = [index for index, payload in enumerate(payloads) if payload.get("final_obs") is not None]
        values: list[torch.Tensor | None] = [None] * len(payloads)
        if ended:
            size = sum(sizes[index] for index in ended)
            finals = self._padded([{"obs": payloads[index]["final_obs"]} for index in ended], size)
            merged = trim(self.get_bootstrap_values(finals), size)
            if merged is not None:
                for index, part in zip(ended, torch.split(merged, [sizes[i] for i in ended]), strict=True):
                    values[index] = part
        return values
