"""A Gaussian policy: the distribution of its actions, and the hosts' two calls, to act and to score."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from rlinf_async.core.tensors import Tensors


class ActionDistribution(NamedTuple):
    """Independent Gaussians over a chunk: mean and std [batch, chunks, action_dim]; value [batch, 1].

    A policy without a critic has no value.
    """

    mean: torch.Tensor
    std: torch.Tensor
    value: torch.Tensor | None

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        """Log-densities [batch, chunks, action_dim] of `actions` of the same shape."""
        return torch.distributions.Normal(self.mean, self.std).log_prob(actions)

    def entropy(self) -> torch.Tensor:
        """Entropies [batch, chunks, action_dim] in nats."""
        return torch.distributions.Normal(self.mean, self.std).entropy()


class GaussianPolicy(nn.Module):
    """Draws chunks of actions from the distribution of `decide`, and scores them by that of `score`.

    `forward_inputs` holds the drawn actions and all inputs of `score`, as tensors with the batch as first
    axis; with the same weights, `score` gives the same distribution again. A subclass defines `decide` and
    `score`.
    """

    # No abstract base class: FSDP2 makes a subclass of the module's class and one of its own, and the
    # metaclass of an abstract base conflicts with that.

    def decide(self, env_obs: dict[str, Any]) -> tuple[ActionDistribution, Tensors]:
        """Return the distribution of actions for observations, and the inputs that `score` will need."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it decides: give it `decide`")

    def score(self, forward_inputs: Tensors) -> ActionDistribution:
        """Return the distribution that `decide` would give now."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores: give it `score`")

    def forward(self, forward_type: Any = None, **inputs: Any) -> Tensors:
        """Score stored actions, see `default_forward`: wrappers such as FSDP2's act on this call.

        `forward_type` is a framework's name of a pass; scoring is its default.

        Raises:
            NotImplementedError: `forward_type` names another pass.
        """
        if getattr(forward_type, "value", forward_type) not in (None, "default"):
            raise NotImplementedError(
                f"forward_type={forward_type}: {type(self).__name__} scores actions, and has no other pass"
            )
        return self.default_forward(**inputs)

    def predict_action_batch(
        self, env_obs: dict[str, Any], mode: str = "train", do_sample: bool = True, **_: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Act on observations of B environments.

        In evaluation, `mode="eval"` or `do_sample=False`, the mean action is taken.

        Returns:
            Actions [B, chunks, action_dim]; and prev_logprobs of that shape, forward_inputs and, if the
            policy estimates them, prev_values [B, 1].
        """
        with torch.no_grad():
            output, forward_inputs = self.decide(env_obs)
            sampled = mode == "train" and do_sample
            actions = torch.normal(output.mean, output.std) if sampled else output.mean
            result: dict[str, Any] = {
                "prev_logprobs": output.log_prob(actions),
                "forward_inputs": {**forward_inputs, "action": actions.flatten(1)},
            }
            if output.value is not None:
                result["prev_values"] = output.value
        return actions, result

    def default_forward(
        self,
        forward_inputs: Tensors,
        compute_logprobs: bool = True,
        compute_entropy: bool = True,
        compute_values: bool = True,
        **_: Any,
    ) -> Tensors:
        """Score stored actions: logprobs and entropy [B, chunks, action_dim], values [B, 1] if it has any."""
        output = self.score(forward_inputs)
        scores = {}
        if compute_logprobs:
            scores["logprobs"] = output.log_prob(forward_inputs["action"].view_as(output.mean))
        if compute_entropy:
            scores["entropy"] = output.entropy()
        if compute_values and output.value is not None:
            scores["values"] = output.value
        return scores
