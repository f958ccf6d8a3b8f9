"""A Gaussian policy of a few linear layers on a state, in the shape of RLinf's MLP policy."""

from __future__ import annotations

from math import sqrt
from typing import Any

import torch
from torch import nn

from rlinf_async.core.tensors import Tensors
from rlinf_async.lab.demo.policies.gaussian_policy import ActionDistribution, GaussianPolicy
from rlinf_async.lab.demo.policies.mlp_settings import HIDDEN_UNITS, MLPSettings
from rlinf_async.lab.demo.policies.sizes import settings_of

LOG_STD = -0.5
"""The log of the standard deviations of actions at the start; they do not depend on the state."""


class GaussianMLP(GaussianPolicy):
    """Maps a state to a Gaussian over a chunk of actions, and by separate layers to a value.

    Parameters have the names of RLinf's `mlp_policy` and start from the same distributions, so that, for one
    action per chunk, state dicts of both are interchangeable.
    """

    def __init__(self, settings: MLPSettings) -> None:
        super().__init__()
        outputs = settings.num_action_chunks * settings.action_dim
        self.settings = settings
        if settings.add_value_head:
            self.value_head = nn.ModuleDict({"mlp": _critic(settings.obs_dim)})
        self.backbone = _three_layers(settings.obs_dim)
        self.actor_mean = nn.Linear(HIDDEN_UNITS, outputs)
        self.actor_logstd = nn.Parameter(torch.full((1, outputs), LOG_STD))
        for layer in self.backbone:
            _start(layer, gain=sqrt(2))
        _start(self.actor_mean, gain=0.01 * sqrt(2))

    def decide(self, env_obs: dict[str, Any]) -> tuple[ActionDistribution, Tensors]:
        """Act on `states` [B, obs_dim]."""
        inputs = {"states": env_obs["states"].to(self.actor_logstd.device)}
        return self.score(inputs), inputs

    def score(self, forward_inputs: Tensors) -> ActionDistribution:
        states = forward_inputs["states"].to(self.actor_logstd.dtype)
        mean = self.actor_mean(self.backbone(states))
        chunk = (len(states), self.settings.num_action_chunks, self.settings.action_dim)
        std = self.actor_logstd.exp().expand_as(mean)
        value = self.value_head["mlp"](states) if self.settings.add_value_head else None
        return ActionDistribution(mean.view(chunk), std.reshape(chunk), value)


def _start(layer: nn.Module, *, gain: float) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.orthogonal_(layer.weight, gain=gain)
        nn.init.zeros_(layer.bias)


def _three_layers(inputs: int) -> nn.Sequential:
    layers = [nn.Linear(width, HIDDEN_UNITS) for width in (inputs, HIDDEN_UNITS, HIDDEN_UNITS)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))


def _critic(inputs: int) -> nn.Sequential:
    """Return the layers of the critic; the last has no bias and small weights, so that first values are near
    0.
    """
    value = nn.Linear(HIDDEN_UNITS, 1, bias=False)
    critic = nn.Sequential(*_three_layers(inputs), value)
    for layer in critic[:-1].children():
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="tanh")
            nn.init.zeros_(layer.bias)
    nn.init.normal_(value.weight, std=0.02)
    return critic


def build_gaussian_mlp(cfg: Any, torch_dtype: torch.dtype | None) -> GaussianMLP:
    """Build the policy from a model section."""
    policy = GaussianMLP(settings_of(MLPSettings, cfg))
    return policy if torch_dtype is None else policy.to(torch_dtype)
