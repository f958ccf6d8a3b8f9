"""The process of an inference rank; it imports no framework, which would cost it seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.decisions import decided
from rlinf_async.hosts.observations import each_alike, merge, observations_of
from rlinf_async.hosts.simulators import reseeded
from rlinf_async.hosts.workers.policy import build_policy
from rlinf_async.hosts.workers.settings import WorkerSettings
from rlinf_async.ray_runtime.answers import Answer, add_bootstrap_values, add_inputs, split
from rlinf_async.ray_runtime.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.seeding import seed_everything


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
            rank=rank,
            deadline_s=settings.asynchrony.advanced.deadline_s,
            initializer=torch.cuda.set_device if on_gpu else None,
            initargs=(0,) if on_gpu else (),
        )

    async def initialise(self) -> None:
        """Build the policy."""
        name = str(self._section["model_type"])
        await asyncio.to_thread(self.build_policy, self._build, name)

    def policy_module(self) -> torch.nn.Module:
        return self._policy

    def weights_changed(self, version: int) -> None:
        self._version = version

    def answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        """One answer per request; only what has the same fields is seen by the policy as one batch."""
        return each_alike(
            [observations_of(payload) for payload in payloads],
            lambda numbers: self._answer(
                [payloads[number] for number in numbers], [sizes[number] for number in numbers], mode
            ),
        )

    def _answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        observations = [payload["obs"] for payload in payloads]
        actions, result = self._act(observations, sum(sizes), mode)
        fields: dict[str, torch.Tensor | None] = {"actions": actions.cpu()}
        if mode == "train":
            fields |= {"logprobs": result["prev_logprobs"].cpu(), "values": _values(result)}
        answers: list[Answer] = [{"version": self._version, **own} for own in split(fields, sizes)]
        if mode == "train":
            inputs = {name: value.cpu() for name, value in result["forward_inputs"].items()}
            add_inputs(answers, inputs, observations)
            add_bootstrap_values(answers, payloads, self._values_of)
        return answers

    def scores(self, samples: dict[str, Any], *, values: bool) -> dict[str, torch.Tensor]:
        inputs = map_tensors(lambda tensor: tensor.to(self._device), samples["forward_inputs"])
        output = self._policy(
            forward_inputs=inputs, compute_logprobs=True, compute_entropy=False, compute_values=values
        )
        wanted = ("logprobs", "values") if values else ("logprobs",)
        return {name: output[name].float().cpu() for name in wanted}

    def _build(self) -> None:
        policy = build_policy(
            self._section,
            ckpt_path=self._ckpt_path,
            seed=self._settings.seed,
            adapters=self._settings.adapters,
        )
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
        """Actions, and what the policy says of them."""
        observations = merge(parts)
        with torch.no_grad():
            given = self._policy.predict_action_batch(env_obs=observations, mode=mode)
        return decided(given, size)

    def _values_of(self, observations: list[Any], size: int) -> torch.Tensor | None:
        return _values(self._act(observations, size, "train")[1])


def _values(result: Mapping[str, Any]) -> torch.Tensor | None:
    """One value for each environment, [B] on the CPU; None where the policy has none."""
    values = result.get("prev_values")
    return None if values is None else values.cpu().reshape(len(values), -1)[:, 0]
