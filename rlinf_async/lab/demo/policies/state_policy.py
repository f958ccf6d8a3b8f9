"""A Gaussian MLP with a critic for environments with a vector state, in the local host's own interface."""

from __future__ import annotations

import math

import torch
from torch import nn

from rlinf_async.hosts.local.policy import ActorCritic


class GaussianPolicy(ActorCritic):
    """Actions are normal around the backbone's mean; log-probabilities are summed over the action.

    Parameters have the names of RLinf's `mlp_policy`, so that its checkpoints and the warm start load. GRPO
    does not train the critic.
    """

    def __init__(self, *, state_dim: int, action_dim: int, hidden: int = 256) -> None:
        super().__init__()
        self.backbone = _three_layers(state_dim, hidden)
        self.actor_mean = nn.Linear(hidden, action_dim)
        self.actor_logstd = nn.Parameter(torch.full((1, action_dim), -0.5))
        critic = [*_three_layers(state_dim, hidden), nn.Linear(hidden, 1, bias=False)]
        self.value_head = nn.ModuleDict({"mlp": nn.Sequential(*critic)})
        nn.init.orthogonal_(self.actor_mean.weight, gain=0.01 * math.sqrt(2))
        nn.init.zeros_(self.actor_mean.bias)
        nn.init.normal_(critic[-1].weight, std=0.02)

    def act(
        self, states: torch.Tensor, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        actions = self.sample(states, noise)
        return actions, self.logprobs(states, actions), self.values(states)

    def evaluate(self, states: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.logprobs(states[: len(actions)], actions), self.values(states)

    def sample(self, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Return actions [B, A] for states [B, S]; all randomness is in the standard normal `noise` [B,
        A].
        """
        mean: torch.Tensor = self.actor_mean(self.backbone(states))
        return mean + self.actor_logstd.exp() * noise

    def logprobs(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        mean = self.actor_mean(self.backbone(states))
        scaled = (actions - mean) * torch.exp(-self.actor_logstd)
        density: torch.Tensor = -0.5 * scaled**2 - self.actor_logstd - 0.5 * math.log(2 * math.pi)
        return density.sum(dim=-1)

    def values(self, states: torch.Tensor) -> torch.Tensor:
        """Return values [B]."""
        values: torch.Tensor = self.value_head.get_submodule("mlp")(states)
        return values.squeeze(-1)


def _three_layers(inputs: int, hidden: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, hidden, hidden):
        linear = nn.Linear(width, hidden)
        nn.init.orthogonal_(linear.weight, gain=math.sqrt(2))
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers)
