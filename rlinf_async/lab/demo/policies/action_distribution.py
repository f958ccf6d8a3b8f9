"""The answer of a policy: a distribution over chunks of actions, and a value."""

from typing import NamedTuple

import torch


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
