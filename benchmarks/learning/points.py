"""The toy task with points of unequal difficulty in one run.

Its starting policy is cloned from moving straight to the origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.learning.trials import TEST_SEEDS, Trial
from rlinf_async.hosts.local.envs import EnvFactory, PointReach
from rlinf_async.hosts.local.policy import GaussianPolicy
from rlinf_async.lab.demo.warm_start import State, search

EPISODES = 256


class UnequalPoints(PointReach):
    """Points that arrive within a radius of their own."""

    def __init__(self, radii: Sequence[float], *, first: int, size: int, group_size: int, seed: int) -> None:
        """`radii`: of each environment of the run."""
        super().__init__(size, first=first, group_size=group_size, seed=seed)
        self._radii = np.array(radii)
        self.radius = self._radii[first : first + size]  # type: ignore[assignment]

    def take_on(self, first: int, episode: int) -> None:
        super().take_on(first, episode)
        self.radius = self._radii[first : first + self._size]  # type: ignore[assignment]


def squared_error(policy: GaussianPolicy, states: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """How far the means are from the expert's moves [B, 2]."""
    means: torch.Tensor = policy.actor_mean(policy.backbone(states))
    return (means - moves).square().mean()


@dataclass(frozen=True)
class Toy:
    """Points, and a policy that moves them."""

    points: type[UnequalPoints]
    policy: type[GaussianPolicy]
    cloning: Callable[[GaussianPolicy, torch.Tensor, torch.Tensor], torch.Tensor]
    """What cloning makes small, of states [B, 2] and the moves [B, 2] of the expert."""
    learning_rate: float
    """Of cloning: a pass over the moves changes so little that none skips the success that is asked for."""

    def environments(self, radii: Sequence[float], *, group_size: int, seed: int) -> EnvFactory:
        """Shards of points; `radii`: of each environment of the run."""

        def build(first: int, size: int) -> UnequalPoints:
            return self.points(radii, first=first, size=size, group_size=group_size, seed=seed)

        return build

    def fresh_policy(self, hidden: int) -> GaussianPolicy:
        """Drawn from torch's generator."""
        sizes = {"state_dim": self.points.state_dim, "action_dim": self.points.action_dim}
        return self.policy(**sizes, hidden=hidden)


GAUSSIAN = Toy(UnequalPoints, GaussianPolicy, squared_error, learning_rate=1e-4)


@dataclass(frozen=True, kw_only=True)
class PointsStart:
    """Cloning stops where the sampled policy solves between `lowest_success` and `highest_success`."""

    radii: tuple[float, ...]
    seed: int
    horizon: int
    hidden: int
    lowest_success: float
    highest_success: float
    toy: Toy = GAUSSIAN
    batch_size: int = 256
    log_std: float = -0.5
    max_epochs: int = 200


def points_start(settings: PointsStart) -> State:
    """Parameters of the toy's policy; equal settings give equal parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return search(settings, _epochs(settings), _trial(settings)).state


def _epochs(settings: PointsStart) -> Iterator[State]:
    chance = np.random.default_rng(settings.seed)
    states = torch.from_numpy(chance.uniform(-1, 1, (2048, 2)).astype(np.float32))
    actions = (-states / UnequalPoints.stride).clamp(-1, 1)
    policy = settings.toy.fresh_policy(settings.hidden)
    parameters = [*policy.backbone.parameters(), *policy.actor_mean.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=settings.toy.learning_rate)
    for _ in range(settings.max_epochs):
        for batch in torch.randperm(len(states)).split(settings.batch_size):
            loss = settings.toy.cloning(policy, states[batch], actions[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}


def _trial(settings: PointsStart) -> Trial:
    seed, radii = TEST_SEEDS + settings.seed, settings.radii
    of_envs = [radii[env * len(radii) // EPISODES] for env in range(EPISODES)]
    return Trial(
        settings.toy.fresh_policy(settings.hidden),
        settings.toy.environments(of_envs, group_size=1, seed=seed),
        episodes=EPISODES,
        horizon=settings.horizon,
        seed=seed,
    )
