"""The toy task with points of unequal difficulty in one run, for a Gaussian policy and a policy of tokens.

The starting policy is cloned from an expert that moves straight to the origin.

A chunk has 56 tokens with one ratio each, as in OpenVLA-OFT: 28 small moves of two tokens each. A point moves
by the mean of the 28. A token is one of 64 bins between -1 and 1. Rare tokens of such a distribution are much
rarer than actions in the tail of a two-dimensional Gaussian, and every decision has 56 chances for one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from rlinf_async.lab.demo.warm_start import State, search

TEST_SEEDS = 1_000_000
"""Added to the seed of a run for its test, so that test and training episodes differ."""


class Trial:
    """Plays test episodes with sampled actions; goals and random draws are the same in every trial."""

    def __init__(
        self, policy: GaussianPolicy, environments: EnvFactory, *, episodes: int, horizon: int, seed: int
    ) -> None:
        self._policy, self._environments = policy, environments
        self._episodes, self._horizon, self._seed = episodes, horizon, seed

    @torch.no_grad()
    def success(self, state: State, *, enough: float) -> float:
        """Return the share of solved episodes of the policy with the parameters `state`."""
        self._policy.load_state_dict(state)
        chance = torch.Generator().manual_seed(self._seed)
        envs = self._environments(0, self._episodes)
        states, ended = envs.begin(), np.zeros(self._episodes, dtype=bool)
        for _ in range(self._horizon):
            noise = torch.randn(self._episodes, envs.action_dim, generator=chance)
            actions = self._policy.sample(torch.from_numpy(states), noise).numpy()
            states, _, ended = envs.decide(actions)
        return float(ended.mean())


TEST_EPISODES = 256


class UnequalPoints(PointReach):
    """PointReach with a radius of its own for each environment."""

    def __init__(self, radii: Sequence[float], *, first: int, size: int, group_size: int, seed: int) -> None:
        """`radii` has the radius of each environment of the run."""
        super().__init__(size, first=first, group_size=group_size, seed=seed)
        self._radii = np.array(radii)
        self.radius = self._radii[first : first + size]  # type: ignore[assignment]

    def take_on(self, seed_offset: int, rollout: int) -> None:
        super().take_on(seed_offset, rollout)
        first = seed_offset * self._size
        self.radius = self._radii[first : first + self._size]  # type: ignore[assignment]


def squared_error(policy: GaussianPolicy, states: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Return the squared error of the policy's means to the expert's moves [B, 2]."""
    means: torch.Tensor = policy.actor_mean(policy.backbone(states))
    return (means - moves).square().mean()


@dataclass(frozen=True)
class Toy:
    """A kind of points, with a policy and the way to clone it."""

    points: type[UnequalPoints]
    policy: type[GaussianPolicy]
    cloning: Callable[[GaussianPolicy, torch.Tensor, torch.Tensor], torch.Tensor]
    """The loss of cloning, from the policy, states [B, 2] and the expert's moves [B, 2]."""
    learning_rate: float
    """Learning rate of cloning, so small that no epoch jumps over the wanted success."""

    def environments(self, radii: Sequence[float], *, group_size: int, seed: int) -> EnvFactory:
        """Return a factory of shards of points; `radii` has the radius of each environment of the run."""

        def build(first: int, size: int) -> UnequalPoints:
            return self.points(radii, first=first, size=size, group_size=group_size, seed=seed)

        return build

    def fresh_policy(self, hidden: int) -> GaussianPolicy:
        """Return a policy with random parameters from torch's global generator."""
        sizes = {"state_dim": self.points.state_dim, "action_dim": self.points.action_dim}
        return self.policy(**sizes, hidden=hidden)


GAUSSIAN_TOY = Toy(UnequalPoints, GaussianPolicy, squared_error, learning_rate=1e-4)


@dataclass(frozen=True, kw_only=True)
class PointsStart:
    """Settings of a cloned starting policy; its success with sampled actions lies between `lowest_success`
    and `highest_success`.
    """

    radii: tuple[float, ...]
    seed: int
    horizon: int
    hidden: int
    lowest_success: float
    highest_success: float
    toy: Toy = GAUSSIAN_TOY
    batch_size: int = 256
    log_std: float = -0.5
    max_epochs: int = 200


def points_start(settings: PointsStart) -> State:
    """Return the parameters of the cloned policy; equal settings give equal parameters."""
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
    of_envs = [radii[env * len(radii) // TEST_EPISODES] for env in range(TEST_EPISODES)]
    return Trial(
        settings.toy.fresh_policy(settings.hidden),
        settings.toy.environments(of_envs, group_size=1, seed=seed),
        episodes=TEST_EPISODES,
        horizon=settings.horizon,
        seed=seed,
    )


TOKENS_PER_CHUNK = 56
BINS_PER_TOKEN = 64


class TokenPoints(UnequalPoints):
    """Points that take a chunk of moves at once, and move by their mean."""

    action_dim = TOKENS_PER_CHUNK

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return super().decide(actions.reshape(len(actions), -1, self.state_dim).mean(axis=1))


class TokenPolicy(GaussianPolicy):
    """A policy with a categorical distribution for every token; log-probabilities are [B, 56]."""

    def __init__(self, *, state_dim: int, action_dim: int = TOKENS_PER_CHUNK, hidden: int) -> None:
        super().__init__(state_dim=state_dim, action_dim=action_dim, hidden=hidden)
        self.actor_mean = nn.Linear(hidden, action_dim * BINS_PER_TOKEN)  # the logits
        nn.init.orthogonal_(self.actor_mean.weight, gain=0.01 * math.sqrt(2))
        nn.init.zeros_(self.actor_mean.bias)
        del self.actor_logstd

    def sample(self, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        chance = torch.special.ndtr(noise)
        below = self._scores(states).exp().cumsum(dim=-1) < chance[..., None]
        return centres(below.sum(dim=-1).clamp(max=BINS_PER_TOKEN - 1))

    def logprobs(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return self._scores(states).gather(-1, bins(actions)[..., None]).squeeze(-1)

    def _scores(self, states: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of all bins, [B, tokens, bins]."""
        logits: torch.Tensor = self.actor_mean(self.backbone(states))
        return logits.unflatten(-1, (-1, BINS_PER_TOKEN)).log_softmax(dim=-1)


def centres(numbers: torch.Tensor) -> torch.Tensor:
    """Return the moves at the centres of bins."""
    return (numbers.float() + 0.5) * (2 / BINS_PER_TOKEN) - 1


def bins(moves: torch.Tensor) -> torch.Tensor:
    """Return the bin numbers of moves between -1 and 1."""
    return ((moves + 1) * (BINS_PER_TOKEN / 2)).floor().long().clamp(0, BINS_PER_TOKEN - 1)


def surprise(policy: GaussianPolicy, states: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Return the negative log-probability of chunks that repeat the expert's moves."""
    return -policy.logprobs(states, moves.repeat(1, TOKENS_PER_CHUNK // moves.shape[1])).mean()


TOKENS_56 = Toy(TokenPoints, TokenPolicy, surprise, learning_rate=1e-3)
