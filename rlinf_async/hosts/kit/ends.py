"""Notices environments that report no end of their episodes, although these are no longer than a rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.hosts.contract import Contract

LIMIT_KEY = "max_episode_steps"


@dataclass(kw_only=True)
class Ends:
    """Reports a rollout that is as long as an episode and has environments without an end."""

    longest: int
    """The most steps of an episode."""
    rollout: int
    """The steps of a rollout."""
    say: Callable[[str], object]
    """Called once, with the report."""
    _said: bool = False

    @classmethod
    def of(cls, section: Mapping[str, Any], *, rollout: int, say: Callable[[str], object]) -> Ends | None:
        """Return the check for the section `env.train`; None if the section does not limit episodes."""
        longest = section.get(LIMIT_KEY)
        return None if longest is None else cls(longest=int(longest), rollout=rollout, say=say)

    def look(self, contract: Contract) -> None:
        """Check a complete rollout; call this before the contract forgets the rollout's ends."""
        if self._said or self.rollout < self.longest or not contract.endless:
            return
        self._said = True
        self.say(
            f"{contract.owner} have reported no end of {contract.endless} episodes in a rollout of "
            f"{self.rollout} steps, with env.train.{LIMIT_KEY}={self.longest}: no truncation and no "
            "termination; the value of the last step is bootstrapped, and an evaluation does not count such "
            "an episode. Set truncations at an episode's last step (docs/extending.md)"
        )
