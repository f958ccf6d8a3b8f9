"""RLinf's rollout worker, answering env shards in dynamic batches."""

from __future__ import annotations

from typing import Any

import torch
from omegaconf import DictConfig
from rlinf.utils.nested_dict_process import put_tensor_device
from rlinf.workers.rollout.hf.huggingface_worker import MultiStepRolloutWorker

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.async_block import read_block
from rlinf_async.hosts.observations import each_alike, merge, observations_of
from rlinf_async.hosts.rlinf.config import resolve
from rlinf_async.hosts.rlinf.hooks import WRONG_RUNNER, PluginWorker
from rlinf_async.hosts.rlinf.placement import COMPONENTS
from rlinf_async.hosts.rlinf.proximal import score
from rlinf_async.hosts.rlinf.settings import RLinfSettings
from rlinf_async.hosts.simulators import reseeded
from rlinf_async.ray_runtime.answers import Answer, add_bootstrap_values, add_inputs, split
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.padding import pad, padded_size, trim
from rlinf_async.ray_runtime.seeding import seed_everything

SCORES = ("logprobs", "values", "prev_logprobs")
"""What a learner reads of a pass over actions that were taken."""


class BatchingRolloutWorker(PluginWorker, InferenceWorker, MultiStepRolloutWorker):
    """One inference rank, whose policy and forward passes are RLinf's."""

    restart_group = "inference"
    """Ray starts this worker again when its process dies, if the run may restart this group; see `hooks`."""

    enable_cuda_graph: bool
    finished_episodes: int | None

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.start_inference(
            rank=self._rank,
            deadline_s=AsyncConfig.from_mapping(read_block(cfg)).advanced.deadline_s,
            initializer=self.torch_platform.set_device,
            initargs=(self.device,),
        )
        self._buckets: tuple[int, ...] = ()

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
        self.build_policy(super().init_worker, str(self.cfg.actor.model.model_type))
        # Ranks sample apart, and a run with the same seed and the same batches samples the same; what takes
        # the place of a process that has died does not sample what that one did.
        own = reseeded(seed + 1 + self._rank, 0, generation=self.generation)
        seed_everything(own)
        if AsyncConfig.from_mapping(read_block(self.cfg)).deterministic:
            self.sampling_seed = own

    async def generate(self, *_: object, **__: object) -> None:
        """RLinf's own loop, which does not run here."""
        raise RuntimeError(WRONG_RUNNER)

    async def serve(self, settings: RLinfSettings, requests: Handle, coordinator: Handle) -> None:
        """Answer batches of requests, by the newest weights, until the channels close."""
        self._buckets = settings.buckets
        await super().serve(settings, requests, coordinator)

    def policy_module(self) -> torch.nn.Module:
        module: torch.nn.Module = self.hf_model
        return module

    def weights_changed(self, version: int) -> None:
        """What RLinf's `sync_model_from_actor` does when it has written the weights that it received."""
        self.version = version
        if self.finished_episodes is None:
            self.finished_episodes = self.version * self.total_num_train_envs * self.rollout_epoch
        self.set_global_step(self.version)
        if self.enable_offload:
            self._come_back()

    async def leave(self) -> None:
        """Off the accelerator, if RLinf's config says so, until there are new weights."""
        if self.enable_offload:
            await self.between_passes(self._leave)

    def _leave(self) -> None:
        with self.spans.span("offload"):
            self.offload_model()

    def _come_back(self) -> None:
        with self.spans.span("offload"):
            self.reload_model()

    def answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        """The fields of RLinf's `RolloutResult`, the `version`, and the `echoes` among `forward_inputs`.

        Only what has the same fields is seen by the policy as one batch.
        """
        return each_alike(
            [observations_of(payload) for payload in payloads],
            lambda numbers: self._answer(
                [payloads[number] for number in numbers], [sizes[number] for number in numbers], mode
            ),
        )

    def _answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        size = sum(sizes)
        observations = [payload["obs"] for payload in payloads]
        actions, result = self.predict(self._padded(observations, size), mode=mode)
        # A captured graph writes the next answer where this one is.
        actions, result = (trim(value, size, copy=self.enable_cuda_graph) for value in (actions, result))
        fields = {"actions": actions}
        if mode == "train":
            fields |= {name: result.get(name) for name in ("prev_logprobs", "prev_values")}
        answers: list[Answer] = [{"version": int(self.version), **own} for own in split(fields, sizes)]
        if mode == "train":
            add_inputs(answers, result["forward_inputs"], observations)
            add_bootstrap_values(answers, payloads, self._values_of)
        return answers

    def scores(self, samples: dict[str, Any], *, values: bool) -> dict[str, torch.Tensor]:
        on_device = put_tensor_device(samples, self.device)
        output = score(self.cfg, self.policy_module(), on_device, values=values)
        return {name: output[name].float().cpu() for name in SCORES if output.get(name) is not None}

    def _values_of(self, observations: list[Any], size: int) -> torch.Tensor | None:
        values: torch.Tensor | None = trim(self.get_bootstrap_values(self._padded(observations, size)), size)
        return values

    def _padded(self, observations: list[dict[str, Any]], size: int) -> dict[str, Any]:
        """The observations of a batch, as many as its bucket holds."""
        merged = merge(observations)
        padded = padded_size(size, self._buckets)
        return pad(merged, padded) if padded > size else merged
