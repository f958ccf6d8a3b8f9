"""How good a policy is before its training."""

from __future__ import annotations

import numpy as np
import torch

from rlinf_async.hosts.local.envs import EnvFactory
from rlinf_async.hosts.local.policy import GaussianPolicy
from rlinf_async.lab.demo.warm_start import State

TEST_SEEDS = 1_000_000
"""Added to the seed of a run: no training has the episodes of its test."""


class Trial:
    """Plays sampled test episodes, always of the same goals and with the same chance."""

    def __init__(
        self, policy: GaussianPolicy, environments: EnvFactory, *, episodes: int, horizon: int, seed: int
    ) -> None:
        self._policy, self._environments = policy, environments
        self._episodes, self._horizon, self._seed = episodes, horizon, seed

    @torch.no_grad()
    def success(self, state: State, *, enough: float) -> float:
        """The share of solved episodes."""
        self._policy.load_state_dict(state)
        chance = torch.Generator().manual_seed(self._seed)
        envs = self._environments(0, self._episodes)
        states, ended = envs.reset(), np.zeros(self._episodes, dtype=bool)
        for _ in range(self._horizon):
            noise = torch.randn(self._episodes, envs.action_dim, generator=chance)
            outcome = envs.step(self._policy.sample(torch.from_numpy(states), noise).numpy())
            states, ended = outcome.states, outcome.ended
        return float(ended.mean())
