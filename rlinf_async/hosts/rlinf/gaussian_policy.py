"""RLinf's two calls to a policy, act on observations and score stored actions, for Gaussian policies."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from rlinf.models.embodiment.base_policy import BasePolicy
from torch import nn

from rlinf_async.core.tensors import Tensors
from rlinf_async.policies.action_distribution import ActionDistribution


class GaussianPolicy(nn.Module, BasePolicy):
    """Draws chunks of actions from what `decide` says, and scores them by what `score` says.

    What is drawn stands in `forward_inputs` beside all that `score` needs, as tensors whose first axis is
    the batch; `score` gives the same distribution again for the same weights.
    """

    @abstractmethod
    def decide(self, env_obs: dict[str, Any]) -> tuple[ActionDistribution, Tensors]:
        """What to do about observations, and what `score` will need to know of them."""

    @abstractmethod
    def score(self, forward_inputs: Tensors) -> ActionDistribution:
        """What `decide` would say now."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """RLinf's dispatcher; without it `torch.nn.Module` would be asked first."""
        return BasePolicy.forward(self, *args, **kwargs)

    def predict_action_batch(
        self, env_obs: dict[str, Any], mode: str = "train", do_sample: bool = True, **_: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Act on observations of B environments.

        RLinf says that it evaluates by `mode="eval"` or, to models it does not know, by
        `do_sample=False`; the mean action is taken then.

        Returns:
            Actions [B, chunks, action_dim]; and prev_logprobs of that shape, prev_values [B, 1] and
            forward_inputs.
        """
        with torch.no_grad():
            output, forward_inputs = self.decide(env_obs)
            sampled = mode == "train" and do_sample
            actions = torch.normal(output.mean, output.std) if sampled else output.mean
            result = {
                "prev_logprobs": output.log_prob(actions),
                "prev_values": output.value,
                "forward_inputs": {**forward_inputs, "action": actions.flatten(1)},
            }
        return actions, result

    def default_forward(
        self,
        forward_inputs: Tensors,
        compute_logprobs: bool = True,
        compute_entropy: bool = True,
        compute_values: bool = True,
        **_: Any,
    ) -> Tensors:
        """Score stored actions: logprobs and entropy [B, chunks, action_dim], values [B, 1]."""
        output = self.score(forward_inputs)
        scores = {}
        if compute_logprobs:
            scores["logprobs"] = output.log_prob(forward_inputs["action"].view_as(output.mean))
        if compute_entropy:
            scores["entropy"] = output.entropy()
        if compute_values:
            scores["values"] = output.value
        return scores
