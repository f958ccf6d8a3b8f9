"""The settings that the workers of RLinf's host need besides RLinf's own config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlinf_async.hosts.rlinf.losses import DISTILLATION, GAE_TYPE, GRPO_TYPE, has_ratio
from rlinf_async.loops.run_settings import RunSettings

PER_STEP, TERMINAL, HISTORY = "per_step", "terminal", "history_buffer"
REWARD_MODES = (PER_STEP, TERMINAL, HISTORY)
"""RLinf's `reward.reward_mode`: the reward model scores the result of every decision, only ends of episodes,
or the history up to every decision."""


@dataclass(frozen=True, kw_only=True)
class RLinfSettings(RunSettings):
    """The settings that the asynchronous workers need besides RLinf's own config; see `settings`."""

    loss: str
    advantage: str
    takes_turns: bool = False
    """True if learner, inference or simulators are offloaded while another of them works."""
    reward_workers: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    """Ray's handles of RLinf's reward workers, in the order of their ranks; set once they have started."""

    @property
    def has_critic(self) -> bool:
        """True if advantages are computed from values."""
        return self.advantage == GAE_TYPE

    @property
    def compares_groups(self) -> bool:
        """True if advantages compare the members of a group."""
        return self.advantage == GRPO_TYPE

    @property
    def has_ratio(self) -> bool:
        """True if the loss compares probabilities of two policies; else RLinf trains whole batches."""
        return has_ratio(self.loss)

    @property
    def streams(self) -> bool:
        """As in `RunSettings`; never if RLinf's actor trains whole batches, or a teacher scores them."""
        return self.has_ratio and not self.distils and super().streams

    @property
    def distils(self) -> bool:
        """True if advantages are a teacher's log-probabilities, less the policy's own."""
        return self.advantage == DISTILLATION

    @property
    def restartable(self) -> frozenset[str]:
        """As in `RunSettings`; empty if processes take turns on their accelerators."""
        return frozenset() if self.takes_turns else super().restartable
