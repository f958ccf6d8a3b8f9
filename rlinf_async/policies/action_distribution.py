"""What a policy answers: a distribution over chunks of actions, and a value."""

from typing import NamedTuple

import torch


class ActionDistribution(NamedTuple):
    """Independent Gaussians over a chunk: mean and std [batch, chunks, action_dim]; value [batch, 1]."""

    mean: torch.Tensor
    std: torch.Tensor
    value: torch.Tensor

    def log_prob(self, actions: torch.Tensor) -> torch.Tensor:
        """Log-densities [batch, chunks, action_dim] of `actions` of the same shape."""
        return torch.distributions.Normal(self.mean, self.std).log_prob(actions)

    def entropy(self) -> torch.Tensor:
        """Entropies [batch, chunks, action_dim] in nats."""
        return torch.distributions.Normal(self.mean, self.std).entropy()


def scored(
    output: ActionDistribution, actions: torch.Tensor, *, logprobs: bool, entropy: bool, values: bool
) -> dict[str, torch.Tensor]:
    """What RLinf asks a policy about stored `actions`, of [B, chunks * action_dim]."""
    scores = {}
    if logprobs:
        scores["logprobs"] = output.log_prob(actions.view_as(output.mean))
    if entropy:
        scores["entropy"] = output.entropy()
    if values:
        scores["values"] = output.value
    return scores
