"""The toy task for a policy of discrete tokens: a chunk of 56 with one ratio each, as OpenVLA-OFT's is.

A chunk is 28 small moves of two tokens each, which points take at once: they move by the mean. A token is
one of 64 bins between -1 and 1. What is rare in such a distribution is much rarer than what is in the tail of
a Gaussian of two dimensions, and there are 56 chances for it in every decision.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from benchmarks.learning.points import Toy, UnequalPoints
from rlinf_async.hosts.local.envs import Outcome
from rlinf_async.hosts.local.policy import GaussianPolicy

TOKENS = 56
BINS = 64


class TokenPoints(UnequalPoints):
    """Points that take a chunk of moves at once."""

    action_dim = TOKENS

    def step(self, actions: np.ndarray) -> Outcome:
        return super().step(actions.reshape(len(actions), -1, self.state_dim).mean(axis=1))


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
