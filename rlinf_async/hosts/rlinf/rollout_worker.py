"""RLinf's rollout worker, which answers requests of env shards in dynamic batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from omegaconf import DictConfig, open_dict

from rlinf_async.core.tensors import Tree, concatenate, map_tensors
from rlinf_async.hosts.kit.inference import PolicyWorker, scores_of
from rlinf_async.hosts.observations import items, merge
from rlinf_async.hosts.rlinf import own_engine
from rlinf_async.hosts.rlinf.borrowed import MultiStepRolloutWorker
from rlinf_async.hosts.rlinf.own_engine import BOOTSTRAP_METHOD, POLICY_ATTRIBUTE, SYNC_METHOD
from rlinf_async.hosts.rlinf.padding import pad, padded_size, trim
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.scoring import score
from rlinf_async.hosts.rlinf.worker_process import PluginWorker, async_config, cuda_device
from rlinf_async.ray_runtime.handles import Handle, RequestChannels


class BatchingRolloutWorker(PluginWorker, PolicyWorker, MultiStepRolloutWorker):
    """One inference rank, with RLinf's policy and forward passes."""

    restart_group = "inference"
    """Ray starts this worker again when its process dies, if the run may restart this group; see `hooks`."""
    acts_elsewhere = False
    """True if a user's class acts by an inference engine other than `hf_model`; see `replacements`."""

    def __init__(self, cfg: DictConfig) -> None:
        # A copy, as `_wants_graphs` below reads the user's setting.
        own = copy.deepcopy(cfg)
        with open_dict(own):
            # RLinf would capture graphs for the batch size of its own loop.
            own.rollout.enable_cuda_graph = False
        super().__init__(own)
        # The current device is set per thread, and forward passes run in another thread.
        self.start_inference(
            rank=self._rank,
            deadline_s=async_config(cfg).advanced.deadline_s,
            initializer=self.torch_platform.set_device,
            initargs=(self.device,),
        )
        self.version = 0
        self._takes_turns = bool(cfg.rollout.get("enable_offload", False))
        self._wants_graphs = bool(cfg.rollout.get("enable_cuda_graph", False))
        self._has_graphs = False
        self._buckets: tuple[int, ...] = ()

    def gpu_device(self) -> torch.device | None:
        return cuda_device(self.device)

    def init_worker(self) -> None:
        seed = int(self.cfg.actor.get("seed", 0))
        # Frozen weights are never sent: without a checkpoint they must be initialised as on the learner.
        torch.manual_seed(seed)
        # Random generators belong to the process: the seed is also valid in the thread that builds the
        # policy.
        self.build_policy(super().init_worker, str(self.cfg.actor.model.model_type))
        if self._takes_turns and not self.can_score():
            raise ValueError(
                f"rollout.enable_offload=true moves {POLICY_ATTRIBUTE} off its accelerator, and "
                f"{type(self).__name__} has none; set rollout.enable_offload=false"
            )
        # After the weights, as all ranks must initialise them with the same seed.
        self.sample_apart(seed, async_config(self.cfg))

    async def serve(self, settings: RLinfSettings, requests: RequestChannels, coordinator: Handle) -> None:
        """Answer batches of requests with the newest weights, until the channels close."""
        self._buckets = settings.buckets
        await super().serve(settings, requests, coordinator)

    def can_score(self) -> bool:
        """Return False for an engine without `hf_model`, which idle inference ranks need to score pieces."""
        return hasattr(self, POLICY_ATTRIBUTE)

    def policy_module(self) -> torch.nn.Module:
        return self.hf_model

    def watched_module(self) -> torch.nn.Module | None:
        policy = getattr(self, POLICY_ATTRIBUTE, None)
        return policy if isinstance(policy, torch.nn.Module) else None

    async def weight_types(self) -> dict[str, torch.dtype]:
        # The types of an engine without `hf_model` are not known: it gets all weights, in the learner's
        # types.
        return await super().weight_types() if hasattr(self, POLICY_ATTRIBUTE) else {}

    def apply_weights(self, state_dict: dict[str, torch.Tensor], version: int) -> None:
        """Write weights into `hf_model`, and pass them to a class with its own inference engine."""
        own = getattr(self, "users_apply_weights", None)
        if own is None and not own_engine.overrides(type(self), MultiStepRolloutWorker, SYNC_METHOD):
            super().apply_weights(state_dict, version)
            return
        # Copies: tensors that an engine keeps must not change with the next version.
        tensors = {name: tensor.clone() for name, tensor in state_dict.items()}
        if own is None:
            own_engine.sync(self, tensors, version)
            return
        if hasattr(self, POLICY_ATTRIBUTE):
            super().apply_weights(tensors, version)
        own(tensors, version)

    def weights_changed(self, version: int) -> None:
        """Do the work of RLinf's `sync_model_from_actor` after it has written new weights."""
        self.version = version
        if hasattr(self, POLICY_ATTRIBUTE) or own_engine.overrides(
            type(self), MultiStepRolloutWorker, "set_global_step"
        ):
            self.set_global_step(version)
        if self._takes_turns:
            self._come_back()  # first: a graph is captured with weights on the device
        if (
            self._wants_graphs
            and not self.acts_elsewhere
            and self.torch_device_type == "cuda"
            and not self._has_graphs
        ):
            # With graphs every batch is padded to one bucket (`settings._buckets`).
            (size,) = self._buckets
            self.hf_model.capture_cuda_graph(train_batch_size=size, eval_batch_size=size)
            self._has_graphs = True

    async def leave(self) -> None:
        """Leave the accelerator until there are new weights, if RLinf's config says so."""
        if self._takes_turns:
            await self.between_passes(self._leave)

    def _leave(self) -> None:
        with self.spans.span("offload"):
            # Before the weights move: a captured graph reads them at their addresses.
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
        batch = self._padded_batch(observations, size)
        if own_engine.most_at_once(self, size) < size:
            return self._in_parts(batch, size, mode)
        actions, result = self.predict(batch, mode=mode)
        # A captured graph, or an engine, may overwrite this answer with the next one.
        copies = self._has_graphs or self.acts_elsewhere
        actions, result = (trim(value, size, copy=copies) for value in (actions, result))
        return actions, result

    def _in_parts(
        self, batch: Mapping[str, Any], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        """Decide for `size` environments with an engine that takes fewer at once."""
        parts: list[Tree] = []
        for rows in own_engine.rows_at_once(self, size):
            actions, result = self.predict(items(batch, rows), mode=mode)
            # Copies, as the engine may overwrite this part with the next one.
            parts.append(trim({**result, "actions": actions}, len(rows), copy=True))
        whole: dict[str, Any] = dict(concatenate(parts))
        return whole.pop("actions"), whole

    def _values_of(self, observations: list[Any], size: int) -> torch.Tensor | None:
        if not own_engine.overrides(type(self), MultiStepRolloutWorker, BOOTSTRAP_METHOD):
            return super()._values_of(observations, size)
        batch, values = merge(observations), []
        for rows in own_engine.rows_at_once(self, size):
            part = getattr(self, BOOTSTRAP_METHOD)(items(batch, rows))
            if part is None:
                return None
            values.append(part.clone())  # which the engine may overwrite with the next one
        return torch.cat(values)

    def has_critic(self) -> bool:
        # The heads that RLinf's `get_bootstrap_values` looks for.
        policy = getattr(self, POLICY_ATTRIBUTE, None)
        return policy is None or any(hasattr(policy, head) for head in ("value_head", "q_head"))

    def scores(self, samples: dict[str, Any], *, values: bool) -> dict[str, torch.Tensor]:
        on_device = map_tensors(lambda tensor: tensor.to(self.device), samples)
        output = score(self.cfg, self.policy_module(), on_device, values=values)
        return scores_of(output)

    def _padded_batch(self, observations: list[Mapping[str, Any]], size: int) -> dict[str, Any]:
        """Return the observations of a batch, padded to the size of its bucket."""
        batch = merge(observations)
        # An engine pads by itself, and may have no room for a bucket.
        bucket = size if self.acts_elsewhere else padded_size(size, self._buckets)
        return pad(batch, bucket) if bucket > size else batch
