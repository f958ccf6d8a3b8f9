"""Lengths of emulated episodes, in decisions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class EpisodeLengths:
    """Successful episodes end early, evenly spread between two lengths; all others last to the horizon.

    A length depends on environment and rollout, not on the shard that plays it, so that a batch has the same
    lengths in every schedule.
    """

    shortest: float = 1.0
    """Fewest decisions of a success; fractions are rounded up."""
    longest: float = 1.0
    """Most decisions of a success."""
    success: float = 1.0
    """The share of episodes that succeed in the first rollout."""
    gain: float = 0.0
    """The growth of that share from each rollout to the next."""
    seen: tuple[int, ...] = ()
    """Measured lengths, in decisions; if there are any, one of them is drawn."""

    def __post_init__(self) -> None:
        if not 0.0 < self.shortest <= self.longest < math.inf:
            raise ValueError(
                f"shortest={self.shortest!r} and longest={self.longest!r} must be finite numbers above 0, "
                "and the first no larger than the second"
            )
        if not 0.0 <= self.success <= 1.0 or not math.isfinite(self.gain):
            raise ValueError(
                f"success={self.success!r} must be from 0 to 1, and gain={self.gain!r} a finite number"
            )
        if min(self.seen, default=1) < 1:
            raise ValueError(f"seen={self.seen!r} must be whole numbers of at least 1")

    def draw(self, env: int, rollout: int, *, horizon: int, seed: int) -> int:
        """Return the decisions of environment number `env` in a rollout, both from 0 on.

        A result above `horizon`, which only measured lengths give, is an episode that is cut there without an
        end.
        """
        rng = np.random.default_rng((seed, env, 2, rollout))
        if self.seen:
            return int(rng.choice(self.seen))
        succeeds = rng.random() < self.success + self.gain * rollout
        length = rng.uniform(self.shortest, self.longest)
        return min(horizon, math.ceil(length)) if succeeds else horizon


def mean_of_most(lengths: npt.ArrayLike, draws: int) -> float:
    """Return the expected length of the longest of so many `draws` of measured lengths."""
    values, counts = np.unique(np.asarray(lengths), return_counts=True)
    at_most = (np.cumsum(counts) / counts.sum()) ** draws
    return float(np.sum(values * np.diff(at_most, prepend=0.0)))
