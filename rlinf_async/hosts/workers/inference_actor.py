"""The process of an inference rank; it imports no framework, which would take seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.core.tensors import map_tensors
from rlinf_async.hosts.kit.inference import PolicyWorker, scores_of
from rlinf_async.hosts.observations import merge
from rlinf_async.hosts.policy_contract import checked_decision, checked_scores
from rlinf_async.hosts.workers.policy import build_policy
from rlinf_async.hosts.workers.settings import WorkerSettings

RESULT_FIELDS = ("prev_logprobs", "prev_values", "forward_inputs")
"""The fields of a policy's result, besides actions, that a run reads."""


class InferenceActor(PolicyWorker):
    """One inference rank: answers with actions and the fields that `ShardRecorder` records."""

    def __init__(
        self, section: Mapping[str, Any], ckpt_path: str | None, settings: WorkerSettings, rank: int
    ) -> None:
        """Set up inference rank `rank`; `initialise` builds the policy of `section` (`vla.model`)."""
        self._section, self._ckpt_path = dict(section), ckpt_path
        self._settings = settings
        self._policy: Any = None
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        on_gpu = self._device.type == "cuda"
        self.start_inference(
            rank=rank,
            deadline_s=settings.asynchrony.advanced.deadline_s,
            # A rank sees only its own accelerator, as number 0; CUDA's current device is set per thread.
            initializer=torch.cuda.set_device if on_gpu else None,
            initargs=(0,) if on_gpu else (),
        )

    async def initialise(self) -> None:
        """Build the policy."""
        name = str(self._section["model_type"])
        # In a thread: building may take minutes, and the event loop must answer meanwhile.
        await asyncio.to_thread(self.build_policy, self._build, name)

    def policy_module(self) -> torch.nn.Module:
        return self._policy

    def decide(
        self, observations: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        with torch.no_grad():
            decision = self._policy.predict_action_batch(env_obs=merge(observations), mode=mode)
        actions, result = checked_decision(decision, size, scored=mode == "train")
        fields = {name: result.get(name) for name in RESULT_FIELDS} if mode == "train" else {}
        return actions.cpu(), map_tensors(torch.Tensor.cpu, fields)

    def scores(self, samples: dict[str, Any], *, values: bool) -> dict[str, torch.Tensor]:
        inputs = map_tensors(lambda tensor: tensor.to(self._device), samples["forward_inputs"])
        output = self._policy(
            forward_inputs=inputs, compute_logprobs=True, compute_entropy=False, compute_values=values
        )
        return scores_of(checked_scores(output, inputs))

    def _build(self) -> None:
        policy = build_policy(
            self._section,
            ckpt_path=self._ckpt_path,
            seed=self._settings.seed,
            adapters=self._settings.adapters,
        )
        self._policy = policy.to(self._device).eval()
        self.sample_apart(self._settings.seed, self._settings.asynchrony)
