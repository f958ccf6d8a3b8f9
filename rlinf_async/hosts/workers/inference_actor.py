"""The process of an inference rank; it imports no framework, which would cost it seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async import __version__
from rlinf_async.core.tensors import Tensors
from rlinf_async.hosts.observations import merge
from rlinf_async.hosts.simulators import reseeded
from rlinf_async.hosts.workers.policy import build_policy
from rlinf_async.hosts.workers.settings import WorkerSettings
from rlinf_async.ray_runtime.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.observation_reuse import without_echoes
from rlinf_async.ray_runtime.padding import pad, padded_size, trim
from rlinf_async.ray_runtime.seeding import seed_everything

Answer = dict[str, Any]


class InferenceActor(InferenceWorker):
    """One inference rank: answers with actions and with what `ShardRecorder` keeps of them."""

    def __init__(
        self, section: Mapping[str, Any], ckpt_path: str | None, settings: WorkerSettings, rank: int
    ) -> None:
        """Be inference rank `rank` with the policy of `section` (`vla.model`), which is not built yet."""
        self._section, self._ckpt_path = dict(section), ckpt_path
        self._settings, self._rank = settings, rank
        self._version = -1
        self._policy: Any = None
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        on_gpu = self._device.type == "cuda"
        self.start_inference(
            rank=rank, initializer=torch.cuda.set_device if on_gpu else None, initargs=(0,) if on_gpu else ()
        )

    async def plugin_version(self) -> str:
        """The version of this package that the process runs."""
        return __version__

    async def initialise(self) -> None:
        """Build the policy."""
        await self.between_passes(self._build)

    def policy_module(self) -> torch.nn.Module:
        return self._policy

    def weights_changed(self, version: int) -> None:
        self._version = version

    def answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        observations = [payload["obs"] for payload in payloads]
        actions, result = self._act(observations, sum(sizes), mode)
        answers: list[Answer] = [
            {"version": self._version, "actions": part.cpu()} for part in torch.split(actions, sizes)
        ]
        if mode == "train":
            self._add_records(answers, result, observations, sizes)
            self._add_bootstrap_values(answers, payloads, sizes)
        return answers

    def _build(self) -> None:
        policy = build_policy(self._section, ckpt_path=self._ckpt_path, seed=self._settings.seed)
        self._policy = policy.to(self._device).eval()
        # Ranks sample apart, and a run with the same seed and the same batches samples the same; what takes
        # the place of a process that has died does not sample what that one did.
        own = reseeded(self._settings.seed + 1 + self._rank, 0, generation=self.generation)
        seed_everything(own)
        if self._settings.asynchrony.deterministic:
            self.sampling_seed = own

    def _act(
        self, parts: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Actions for `size` environments, and what the policy says of them."""
        observations = merge(parts)
        padded = padded_size(size, self._settings.buckets)
        if padded > size:
            observations = pad(observations, padded)
        with torch.no_grad():
            actions, result = self._policy.predict_action_batch(env_obs=observations, mode=mode)
        return trim(torch.as_tensor(actions), size), trim(result, size)

    def _add_records(
        self,
        answers: list[Answer],
        result: Mapping[str, Any],
        observations: list[Mapping[str, Any]],
        sizes: list[int],
    ) -> None:
        """What the learner needs to know of the actions. Pictures that a shard has need not travel back."""
        for name, tensor in (("logprobs", result["prev_logprobs"]), ("values", _values(result))):
            parts = [None] * len(sizes) if tensor is None else torch.split(tensor.cpu(), sizes)
            for answer, part in zip(answers, parts, strict=True):
                answer[name] = part
        inputs = {name: torch.split(value.cpu(), sizes) for name, value in result["forward_inputs"].items()}
        for index, answer in enumerate(answers):
            own: Tensors = {name: parts[index] for name, parts in inputs.items()}
            answer["forward_inputs"], answer["echoes"] = without_echoes(own, observations[index])

    def _add_bootstrap_values(
        self, answers: list[Answer], payloads: list[dict[str, Any]], sizes: list[int]
    ) -> None:
        """Values of final observations, for the shards whose episodes have just ended, and for no others."""
        ended = [index for index, payload in enumerate(payloads) if payload.get("final_obs") is not None]
        if not ended:
            return
        sizes_of_ended = [sizes[index] for index in ended]
        _, result = self._act([payloads[index]["final_obs"] for index in ended], sum(sizes_of_ended), "train")
        values = _values(result)
        if values is not None:
            for index, part in zip(ended, torch.split(values.cpu(), sizes_of_ended), strict=True):
                answers[index]["bootstrap_values"] = part


def _values(result: Mapping[str, Any]) -> torch.Tensor | None:
    """One value for each environment: [B]; None where the policy has none."""
    values = result.get("prev_values")
    return None if values is None else values.reshape(len(values), -1)[:, 0]
