"""The toy task for a policy that matches flows: a chunk of moves, denoised in K steps as RLinf's pi0 does it.

Formulas are those of RLinf 0.3's `sample_mean_var_val` with `flow_sde`: one step, drawn for each sample, has
noise and is scored; the others are deterministic. RLinf draws the step once for a forward pass, which changes
how samples of a pass hang together and not how one of them is distributed.
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
from rlinf_async.hosts.local.policy import ActorCritic, GaussianPolicy

STEPS = 4
NOISE = 0.5
"""RLinf's `noise_level` of pi0 on LIBERO, whose `num_steps` is 4, too."""


def transition(
    x: torch.Tensor,
    velocity: torch.Tensor,
    step: torch.Tensor,
    *,
    noisy: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of one denoise step, [B, D] and [B, 1]; without noise where `noisy` [B] is false.

    Args:
        step: its number from 0, [B]; time runs from 1 (noise) to 0 (an action).
    """
    times = torch.cat([torch.linspace(1, 1 / STEPS, STEPS, dtype=x.dtype), torch.zeros(1, dtype=x.dtype)])
    time, length = times[step, None], (times[step] - times[step + 1])[:, None]
    before_last = torch.where(times == 1, times[1], times)
    sigma = NOISE * torch.sqrt(times / (1 - before_last))[step, None] * noisy[:, None]
    action, noise_before = x - velocity * time, x + velocity * (1 - time)
    weight = time - length - sigma**2 * length / (2 * time)
    return action * (1 - (time - length)) + noise_before * weight, length.sqrt() * sigma


@dataclass(frozen=True)
class Chain:
    """A decision, [B, ...]: the action, and the scored step with what stood before it and behind it."""

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
    """Points that take a chunk of n moves at once, and move by their sum over the root of n, so that noise of
    one size moves them as far whatever n is; actions are `Chain.packed`."""

    chunk: ClassVar[int] = 1
    action_dim = 3 * 2 + 1

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        moves = actions[:, : 2 * self.chunk]
        summed = moves.reshape(len(actions), self.chunk, self.state_dim).sum(axis=1)
        return super().decide(summed / math.sqrt(self.chunk))


class ManyFlowPoints(FlowPoints):
    """A chunk of 5 moves, 10 dimensions."""

    chunk = 5
    action_dim = 3 * 2 * 5 + 1


class FlowPolicy(GaussianPolicy):
    """A velocity field of a few layers, of a state, a time and a noisy chunk."""

    scored = Scored(steps=STEPS)

    def __init__(self, *, state_dim: int, action_dim: int, hidden: int) -> None:
        dimensions = (action_dim - 1) // 3
        super().__init__(state_dim=state_dim, action_dim=dimensions, hidden=hidden)
        layers = [nn.Linear(state_dim + 1 + dimensions, hidden), *list(self.backbone)[1:]]
        self.backbone = nn.Sequential(*layers)
        del self.actor_logstd

    def velocity(self, states: torch.Tensor, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Of chunks [B, D] at times [B]; it leads from an action, at time 0, to noise."""
        seen = torch.cat([states, time[:, None], x], dim=1)
        found: torch.Tensor = self.actor_mean(self.backbone(seen))
        return found

    def step(
        self, states: torch.Tensor, x: torch.Tensor, number: torch.Tensor, noisy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation of one denoise step of every sample."""
        return transition(x, self.velocity(states, x, 1 - number / STEPS), number, noisy=noisy)

    def sample(self, states: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """`Chain.packed` of a decision; of `noise` the first 2 D + 1 are used."""
        dimensions = (noise.shape[1] - 1) // 3
        x, shock = noise[:, :dimensions], noise[:, dimensions : 2 * dimensions]
        drawn = (torch.special.ndtr(noise[:, -1]) * STEPS).long().clamp(max=STEPS - 1)
        before = behind = x
        for number in range(STEPS):
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
    """The loss of flow matching towards chunks of the expert's move again and again."""
    assert isinstance(policy, FlowPolicy)
    dimensions = policy.actor_mean.out_features
    chunk = dimensions // moves.shape[1]
    actions = moves.repeat(1, chunk) / math.sqrt(chunk)
    noise, time = torch.randn_like(actions), torch.rand(len(actions))
    x = time[:, None] * noise + (1 - time[:, None]) * actions
    return (policy.velocity(states, x, time) - (noise - actions)).square().mean()


FEW = Toy(FlowPoints, FlowPolicy, matching, learning_rate=1e-3)
MANY = Toy(ManyFlowPoints, FlowPolicy, matching, learning_rate=1e-3)
