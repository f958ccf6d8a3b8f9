"""The toy task with points of unequal difficulty in one run, for a Gaussian policy and one of tokens.

Its starting policy is cloned from moving straight to the origin.

A chunk of tokens has 56 of them with one ratio each, as OpenVLA-OFT's has: 28 small moves of two tokens each,
which points take at once: they move by the mean. A token is one of 64 bins between -1 and 1. What is rare in
such a distribution is much rarer than what is in the tail of a Gaussian of two dimensions, and there are 56
chances for it in every decision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rlinf_async.hosts.local.envs import EnvFactory, PointReach
from rlinf_async.hosts.local.policy import GaussianPolicy
from rlinf_async.lab.demo.warm_start import State, search

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
        states, ended = envs.begin(), np.zeros(self._episodes, dtype=bool)
        for _ in range(self._horizon):
            noise = torch.randn(self._episodes, envs.action_dim, generator=chance)
            actions = self._policy.sample(torch.from_numpy(states), noise).numpy()
            states, _, ended = envs.decide(actions)
        return float(ended.mean())


EPISODES = 256


class UnequalPoints(PointReach):
    """Points that arrive within a radius of their own."""

    def __init__(self, radii: Sequence[float], *, first: int, size: int, group_size: int, seed: int) -> None:
        """`radii`: of each environment of the run."""
        super().__init__(size, first=first, group_size=group_size, seed=seed)
        self._radii = np.array(radii)
        self.radius = self._radii[first : first + size]  # type: ignore[assignment]

    def take_on(self, seed_offset: int, rollout: int) -> None:
        super().take_on(seed_offset, rollout)
        first = seed_offset * self._size
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


TOKENS = 56
BINS = 64


class TokenPoints(UnequalPoints):
    """Points that take a chunk of moves at once."""

    action_dim = TOKENS

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return super().decide(actions.reshape(len(actions), -1, self.state_dim).mean(axis=1))


class TokenPolicy(GaussianPolicy):
    """Every token is drawn by itself from a categorical distribution; log-probabilities are [B, 56]."""

    def __init__(self, *, state_dim: int, action_dim: int = TOKENS, hidden: int) -> None:
        super().__init__(state_dim=state_dim, action_dim=action_dim, hidden=hidden)
        self.actor_mean = nn.Linear(hidden, action_dim * BINS)  # the logits
        nn.init.orthogonal_(self.actor_mean.weight, gain=0.01 * math.sqrt(2))
        nn.init.zeros_(self.actor_mean.bias)
        del self.actor_logstd

    def sample(self, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        chance = torch.special.ndtr(noise)
        below = self._scores(states).exp().cumsum(dim=-1) < chance[..., None]
        return centres(below.sum(dim=-1).clamp(max=BINS - 1))

    def logprobs(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return self._scores(states).gather(-1, bins(actions)[..., None]).squeeze(-1)

    def _scores(self, states: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all bins, [B, tokens, bins]."""
        logits: torch.Tensor = self.actor_mean(self.backbone(states))
        return logits.unflatten(-1, (-1, BINS)).log_softmax(dim=-1)


def centres(numbers: torch.Tensor) -> torch.Tensor:
    """The moves that bins stand for."""
    return (numbers.float() + 0.5) * (2 / BINS) - 1


def bins(moves: torch.Tensor) -> torch.Tensor:
    """The numbers of the bins that moves between -1 and 1 are in."""
    return ((moves + 1) * (BINS / 2)).floor().long().clamp(0, BINS - 1)


def surprise(policy: GaussianPolicy, states: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """How improbable the policy finds chunks that are the expert's moves again and again."""
    return -policy.logprobs(states, moves.repeat(1, TOKENS // moves.shape[1])).mean()


TOKENS_56 = Toy(TokenPoints, TokenPolicy, surprise, learning_rate=1e-3)
