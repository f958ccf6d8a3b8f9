"""RLinf's rollout worker, answering env shards in dynamic batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig, open_dict

from rlinf_async.config import AsyncConfig
from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.async_block import read_block
from rlinf_async.hosts.kit.inference import PolicyWorker
from rlinf_async.hosts.kit.scoring import scores_of
from rlinf_async.hosts.observations import merge
from rlinf_async.hosts.rlinf import own_engine
from rlinf_async.hosts.rlinf.borrowed import MultiStepRolloutWorker
from rlinf_async.hosts.rlinf.models import score
from rlinf_async.hosts.rlinf.own_engine import POLICY
from rlinf_async.hosts.rlinf.padding import pad, padded_size, trim
from rlinf_async.hosts.rlinf.settings import RLinfSettings
from rlinf_async.hosts.rlinf.worker_process import PluginWorker
from rlinf_async.ray_runtime.handles import Handle


class BatchingRolloutWorker(PluginWorker, PolicyWorker, MultiStepRolloutWorker):
    """One inference rank, whose policy and forward passes are RLinf's."""

    restart_group = "inference"
    """Ray starts this worker again when its process dies, if the run may restart this group; see `hooks`."""

    def __init__(self, cfg: DictConfig) -> None:
        # A copy, as `_wants_graphs` below is what the user asked for.
        own = copy.deepcopy(cfg)
        with open_dict(own):
            # RLinf would capture graphs of as many environments as its own loop brings together.
            own.rollout.enable_cuda_graph = False
        super().__init__(own)
        # The current device is a thread's own: forward passes are made in another thread than this one.
        self.start_inference(
            rank=self._rank,
            deadline_s=AsyncConfig.from_mapping(read_block(cfg)).advanced.deadline_s,
            initializer=self.torch_platform.set_device,
            initargs=(self.device,),
        )
        self.version = 0
        self._takes_turns = bool(cfg.rollout.get("enable_offload", False))
        self._wants_graphs = bool(cfg.rollout.get("enable_cuda_graph", False))
        self._has_graphs = False
        self._buckets: tuple[int, ...] = ()

    def init_worker(self) -> None:
        seed = int(self.cfg.actor.get("seed", 0))
        # Weights that no checkpoint gives and that are not trained are never sent: drawn as the learner does.
        torch.manual_seed(seed)
        # The generators are the process's: the seed holds in the thread that builds the policy, too.
        self.build_policy(super().init_worker, str(self.cfg.actor.model.model_type))
        # After the weights, which have to be drawn alike on every rank.
        self.sample_apart(seed, AsyncConfig.from_mapping(read_block(self.cfg)))

    async def serve(self, settings: RLinfSettings, requests: Handle, coordinator: Handle) -> None:
        """Answer batches of requests, by the newest weights, until the channels close."""
        self._buckets = settings.buckets
        if not hasattr(self, POLICY) and settings.scored_by_inference:
            raise RuntimeError(
                f"{type(self).__name__} has no {POLICY}, by which idle inference ranks score pieces; set "
                "async.advanced.measure_ratios=false, with which the learner scores all"
            )
        await super().serve(settings, requests, coordinator)

    def policy_module(self) -> torch.nn.Module:
        module: torch.nn.Module = self.hf_model
        return module

    def watched_module(self) -> torch.nn.Module | None:
        policy = getattr(self, POLICY, None)
        return policy if isinstance(policy, torch.nn.Module) else None

    async def weight_types(self) -> dict[str, torch.dtype]:
        # Of an engine without `hf_model` nothing is known: it is sent all weights, in the learner's types.
        return await super().weight_types() if hasattr(self, POLICY) else {}

    def apply_weights(self, state_dict: dict[str, torch.Tensor], version: int) -> None:
        """Write weights into `hf_model`, and hand them to a class that acts by an engine of its own."""
        own = getattr(self, "users_apply_weights", None)
        if own is None and not own_engine.syncs_itself(type(self), MultiStepRolloutWorker):
            super().apply_weights(state_dict, version)
            return
        # Copies: what an engine keeps of them must not change with the next version.
        tensors = {name: tensor.clone() for name, tensor in state_dict.items()}
        if own is None:
            own_engine.sync(self, tensors, version)
            return
        if hasattr(self, POLICY):
            super().apply_weights(tensors, version)
        own(tensors, version)

    def weights_changed(self, version: int) -> None:
        """Do what RLinf's `sync_model_from_actor` does when it has written the weights that it received."""
        self.version = version
        if hasattr(self, POLICY):
            self.set_global_step(version)
        if self._takes_turns:
            self._come_back()  # first: a graph is captured of weights on the device
        if self._wants_graphs and self.torch_device_type == "cuda" and not self._has_graphs:
            # With graphs there is one bucket, to which every batch is padded (`settings._buckets`).
            (size,) = self._buckets
            self.hf_model.capture_cuda_graph(train_batch_size=size, eval_batch_size=size)
            self._has_graphs = True

    async def leave(self) -> None:
        """Off the accelerator, if RLinf's config says so, until there are new weights."""
        if self._takes_turns:
            await self.between_passes(self._leave)

    def _leave(self) -> None:
        with self.spans.span("offload"):
            # Before the weights move: a captured graph reads them where they are.
            if self._has_graphs:
                self.hf_model.release_cuda_graph()
                self._has_graphs = False
            self.hf_model.to("cpu")
            self.torch_platform.empty_cache()

    def _come_back(self) -> None:
        with self.spans.span("offload"):
            self.hf_model.to(self.device)

    def decide(
        self, observations: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        actions, result = self.predict(self._padded_batch(observations, size), mode=mode)
        # A captured graph writes the next answer where this one is.
        actions, result = (trim(value, size, copy=self._has_graphs) for value in (actions, result))
        return actions, result

    def has_critic(self) -> bool:
        # The heads by which RLinf's `get_bootstrap_values` tells.
        policy = getattr(self, POLICY, None)
        return policy is None or any(hasattr(policy, head) for head in ("value_head", "q_head"))

    def scores(self, samples: dict[str, Any], *, values: bool) -> dict[str, torch.Tensor]:
        on_device = map_tensors(lambda tensor: tensor.to(self.device), samples)
        output = score(self.cfg, self.policy_module(), on_device, values=values)
        return scores_of(output)

    def _padded_batch(self, observations: list[Mapping[str, Any]], size: int) -> dict[str, Any]:
        """The observations of a batch, as many as its bucket holds."""
        batch = merge(observations)
        bucket = padded_size(size, self._buckets)
        return pad(batch, bucket) if bucket > size else batch
