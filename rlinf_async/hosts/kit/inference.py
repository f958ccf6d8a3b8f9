"""An inference rank whose policy says of its actions what this package's and RLinf's policies do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.observations import each_alike, observations_of
from rlinf_async.hosts.simulators import reseeded
from rlinf_async.ray_runtime.answers import Answer, add_bootstrap_values, add_inputs, split
from rlinf_async.ray_runtime.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.seeding import seed_everything


class PolicyWorker(InferenceWorker):
    """An inference rank; a host gives the decisions of its policy."""

    def decide(
        self, observations: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        """Actions for `size` environments, and what the policy says of them, on the CPU. A host gives them.

        For training it says `prev_logprobs`, `forward_inputs` and, with a critic, `prev_values`.
        """
        raise NotImplementedError

    def has_critic(self) -> bool:
        """Return False if values need not be asked for, as there are none. A host may know."""
        return True

    def sample_apart(self, seed: int, asynchrony: AsyncConfig) -> None:
        """Seed what this rank samples from now on.

        Ranks sample apart, and a run with the same seed and the same batches samples the same; what takes
        the place of a process that has died does not sample what that one did.
        """
        own = reseeded(seed + 1 + self._inference_rank, 0, generation=self.generation)
        seed_everything(own)
        if asynchrony.deterministic:
            self.sampling_seed = own

    def answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        """One answer per request: `actions` and the `version`; for training also `prev_logprobs`,
        `prev_values`, `bootstrap_values`, `forward_inputs`, and the `echoes` among the inputs.

        Only what has the same fields is seen by the policy as one batch.
        """
        return each_alike(
            [observations_of(payload) for payload in payloads],
            lambda numbers: self._answer(
                [payloads[number] for number in numbers], [sizes[number] for number in numbers], mode
            ),
        )

    def _answer(self, payloads: list[dict[str, Any]], sizes: list[int], mode: str) -> list[Answer]:
        observations = [payload["obs"] for payload in payloads]
        actions, result = self.decide(observations, sum(sizes), mode)
        fields: dict[str, torch.Tensor | None] = {"actions": actions}
        if mode == "train":
            fields |= {name: result.get(name) for name in ("prev_logprobs", "prev_values")}
        answers: list[Answer] = [{"version": self._version_held, **own} for own in split(fields, sizes)]
        if mode == "train":
            add_inputs(answers, result["forward_inputs"], observations)
            add_bootstrap_values(answers, payloads, self._values_of)
        return answers

    def _values_of(self, observations: list[Any], size: int) -> torch.Tensor | None:
        """The values [B, 1] of the final observations of B environments; None where there is no critic."""
        if not self.has_critic():
            return None
        values = self.decide(observations, size, "train")[1].get("prev_values")
        return None if values is None else values.reshape(size, -1)[:, :1].cpu()
