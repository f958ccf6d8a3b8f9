"""A starting policy for the points, cloned from moving straight to the origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.learning.points import UnequalPoints
from rlinf_async.hosts.local.policy import GaussianPolicy
from rlinf_async.warm_start import State, search

EPISODES = 256


@dataclass(frozen=True, kw_only=True)
class PointsStart:
    """Cloning stops where the sampled policy solves between `lowest_success` and `highest_success`."""

    radii: tuple[float, ...]
    seed: int
    horizon: int
    hidden: int
    lowest_success: float
    highest_success: float
    learning_rate: float = 1e-4
    batch_size: int = 256
    log_std: float = -0.5
    max_epochs: int = 200


def points_start(settings: PointsStart) -> State:
    """Parameters of a GaussianPolicy; equal settings give equal parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return search(settings, _epochs(settings), _Trial(settings)).state


def fresh_policy(hidden: int) -> GaussianPolicy:
    """Drawn from torch's generator."""
    return GaussianPolicy(
        state_dim=UnequalPoints.state_dim, action_dim=UnequalPoints.action_dim, hidden=hidden
    )


def _epochs(settings: PointsStart) -> Iterator[State]:
    chance = np.random.default_rng(settings.seed)
    states = torch.from_numpy(chance.uniform(-1, 1, (2048, 2)).astype(np.float32))
    actions = (-states / UnequalPoints.stride).clamp(-1, 1)
    policy = fresh_policy(settings.hidden)
    parameters = [*policy.backbone.parameters(), *policy.actor_mean.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)
    for _ in range(settings.max_epochs):
        for batch in torch.randperm(len(states)).split(settings.batch_size):
            means = policy.actor_mean(policy.backbone(states[batch]))
            loss = (means - actions[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}


class _Trial:
    """Plays sampled test episodes, always of the same points and with the same chance."""

    def __init__(self, settings: PointsStart) -> None:
        self._settings = settings
        self._policy = fresh_policy(settings.hidden)

    @torch.no_grad()
    def success(self, state: State, *, enough: float) -> float:
        """The share of solved episodes."""
        seed = 1_000_000 + self._settings.seed
        self._policy.load_state_dict(state)
        chance = torch.Generator().manual_seed(seed)
        envs = UnequalPoints(_radii(self._settings.radii), first=0, group_size=1, seed=seed)
        states, ended = envs.reset(), np.zeros(EPISODES, dtype=bool)
        for _ in range(self._settings.horizon):
            noise = torch.randn(EPISODES, UnequalPoints.action_dim, generator=chance)
            outcome = envs.step(self._policy.sample(torch.from_numpy(states), noise).numpy())
            states, ended = outcome.states, outcome.ended
        return float(ended.mean())


def _radii(radii: Sequence[float]) -> list[float]:
    return [radii[env * len(radii) // EPISODES] for env in range(EPISODES)]
