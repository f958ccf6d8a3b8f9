"""The toy task for a flow-matching policy: a chunk of moves, denoised in K steps as in RLinf's pi0.

Formulas are those of RLinf 0.3's `sample_mean_var_val` with `flow_sde`: one step, drawn for each sample, has
noise and is scored; the others are deterministic. RLinf draws the step once for a forward pass. This makes
the samples of a pass dependent, and leaves the distribution of each sample unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from benchmarks.learning.points import Toy, UnequalPoints
from rlinf_async.core.scores import Scored
from rlinf_async.hosts.local.policy import ActorCritic
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy

DENOISE_STEPS = 4
NOISE_LEVEL = 0.5
"""RLinf's `noise_level` of pi0 on LIBERO, where `num_steps` is 4, too."""


def transition(
    x: torch.Tensor,
    velocity: torch.Tensor,
    step: torch.Tensor,
    *,
    noisy: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean [B, D] and deviation [B, 1] of one denoise step; no noise where `noisy` [B] is false.

    Args:
        step: number of the step from 0, [B]; time runs from 1 (noise) to 0 (an action).
    """
    times = torch.cat(
        [torch.linspace(1, 1 / DENOISE_STEPS, DENOISE_STEPS, dtype=x.dtype), torch.zeros(1, dtype=x.dtype)]
    )
    time, length = times[step, None], (times[step] - times[step + 1])[:, None]
    before_last = torch.where(times == 1, times[1], times)
    sigma = NOISE_LEVEL * torch.sqrt(times / (1 - before_last))[step, None] * noisy[:, None]
    action, noise_before = x - velocity * time, x + velocity * (1 - time)
    weight = time - length - sigma**2 * length / (2 * time)
    return action * (1 - (time - length)) + noise_before * weight, length.sqrt() * sigma


@dataclass(frozen=True)
class Chain:
    """Decisions [B, ...]: the actions, the scored steps, and the chunks before and after the scored steps."""

    action: torch.Tensor
    before: torch.Tensor
    behind: torch.Tensor
    step: torch.Tensor

    def packed(self) -> torch.Tensor:
        return torch.cat([self.action, self.before, self.behind, self.step[:, None].float()], dim=1)

    @classmethod
    def unpacked(cls, packed: torch.Tensor) -> Chain:
        action, before, behind = packed[:, :-1].chunk(3, dim=1)
        return cls(action, before, behind, packed[:, -1].long())


class FlowPoints(UnequalPoints):
    """Points that take a chunk of n moves at once; actions are `Chain.packed`.

    A point moves by the sum of the moves over the root of n, so that the effect of noise does not depend on
    n.
    """

    chunk: ClassVar[int] = 1
    action_dim = 3 * 2 + 1

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moves = actions[:, : 2 * self.chunk]
        summed = moves.reshape(len(actions), self.chunk, self.state_dim).sum(axis=1)
        return super().decide(summed / math.sqrt(self.chunk))


class ManyFlowPoints(FlowPoints):
    """Points with chunks of 5 moves, 10 dimensions."""

    chunk = 5
    action_dim = 3 * 2 * 5 + 1


class FlowPolicy(GaussianPolicy):
    """A flow-matching policy; a small network maps a state, a time and a noisy chunk to a velocity."""

    scored = Scored(steps=DENOISE_STEPS)

    def __init__(self, *, state_dim: int, action_dim: int, hidden: int) -> None:
        dimensions = (action_dim - 1) // 3
        super().__init__(state_dim=state_dim, action_dim=dimensions, hidden=hidden)
        layers = [nn.Linear(state_dim + 1 + dimensions, hidden), *list(self.backbone)[1:]]
        self.backbone = nn.Sequential(*layers)
        del self.actor_logstd

    def velocity(self, states: torch.Tensor, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the velocity of chunks [B, D] at times [B], from the action, at time 0, towards noise."""
        seen = torch.cat([states, time[:, None], x], dim=1)
        found: torch.Tensor = self.actor_mean(self.backbone(seen))
        return found

    def step(
        self, states: torch.Tensor, x: torch.Tensor, number: torch.Tensor, noisy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and deviation of denoise step `number` of every sample."""
        return transition(x, self.velocity(states, x, 1 - number / DENOISE_STEPS), number, noisy=noisy)

    def sample(self, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """Return `Chain.packed` of a decision.

        Of `noise`, D columns are the first chunk, D the noise of the scored step; the last draws that step.
        """
        dimensions = (noise.shape[1] - 1) // 3
        x, shock = noise[:, :dimensions], noise[:, dimensions : 2 * dimensions]
        drawn = (torch.special.ndtr(noise[:, -1]) * DENOISE_STEPS).long().clamp(max=DENOISE_STEPS - 1)
        before = behind = x
        for number in range(DENOISE_STEPS):
            at = torch.full_like(drawn, number)
            mean, deviation = self.step(states, x, at, drawn == number)
            following = mean + deviation * shock
            chosen = (drawn == number)[:, None]
            before, behind = torch.where(chosen, x, before), torch.where(chosen, following, behind)
            x = following
        return Chain(x, before, behind, drawn).packed()

    def logprobs(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        shape = actions.shape[:-1]
        chain = Chain.unpacked(actions.flatten(0, -2))
        mean, deviation = self.step(
            states.flatten(0, -2), chain.before, chain.step, torch.ones_like(chain.step, dtype=torch.bool)
        )
        density = torch.distributions.Normal(mean, deviation).log_prob(chain.behind)
        return density.sum(dim=1).view(shape)


def matching(policy: ActorCritic, states: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Return the flow-matching loss towards chunks that repeat the expert's move."""
    assert isinstance(policy, FlowPolicy)
    dimensions = policy.actor_mean.out_features
    chunk = dimensions // moves.shape[1]
    actions = moves.repeat(1, chunk) / math.sqrt(chunk)
    noise, time = torch.randn_like(actions), torch.rand(len(actions))
    x = time[:, None] * noise + (1 - time[:, None]) * actions
    return (policy.velocity(states, x, time) - (noise - actions)).square().mean()


FEW_TOY = Toy(FlowPoints, FlowPolicy, matching, learning_rate=1e-3)
MANY_TOY = Toy(ManyFlowPoints, FlowPolicy, matching, learning_rate=1e-3)
