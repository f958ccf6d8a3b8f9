"""The shares of a GPU that several processes of a run have in common.

The rule: every learner and inference rank gets its estimate, and `CONTEXT_BYTES` stay free for it. The rest
of the GPU is cut into equal portions: `LEARNER_PORTIONS` for each learner rank, one for each inference rank,
and one for all other processes together, such as simulators. A portion does not depend on the estimates,
because activations and gathered layers, which they leave out, are large even where a rank holds a small
shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GIGABYTE = 10**9
GPU_SHARES_KEY = "async.advanced.gpu_shares"
CONTEXT_BYTES = GIGABYTE
"""Bytes of a process that torch's limit does not count, such as its CUDA context and the buffers of
communication. An assumption."""
LEARNER_PORTIONS = 2
"""Portions of a learner rank, which keeps activations for the backward pass."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The bytes that torch may hold in each process on a GPU, and those that are left to other processes."""

    learner: int
    """For each learner rank."""
    inference: int
    """For each inference rank."""
    others: int
    """For all processes without a limit together."""


@dataclass(frozen=True, kw_only=True)
class SharedGpu:
    """A GPU with several processes of a run, at least one of them a learner or inference rank."""

    name: str
    learners: tuple[int, ...] = ()
    """The learner ranks on it."""
    inference: tuple[int, ...] = ()
    """The inference ranks on it."""
    others: tuple[str, ...] = ()
    """The names of the processes on it that get no limit."""
    learner_bytes: int
    """The estimate of a learner rank, without activations."""
    inference_bytes: int
    """The estimate of an inference rank, without activations."""

    def __post_init__(self) -> None:
        if not self.limited or self.limited + len(self.others) < 2:
            raise ValueError(
                f"learners={self.learners}, inference={self.inference} and others={self.others} of "
                f"{self.name} must be at least two processes, and one of them a learner or inference rank"
            )

    @property
    def limited(self) -> int:
        """The number of processes that get a limit."""
        return len(self.learners) + len(self.inference)

    def divide(self, total: int) -> Shares | None:
        """Divide `total` bytes by the rule at the top; None if the estimates alone do not fit."""
        known = len(self.learners) * self.learner_bytes + len(self.inference) * self.inference_bytes
        rest = total - known - self.limited * CONTEXT_BYTES
        portions = LEARNER_PORTIONS * len(self.learners) + len(self.inference) + bool(self.others)
        if rest < portions:
            return None
        portion = rest // portions
        return Shares(
            learner=self.learner_bytes + LEARNER_PORTIONS * portion,
            inference=self.inference_bytes + portion,
            others=portion if self.others else 0,
        )

    def in_words(self, total: int) -> str:
        """Return the division of `total` bytes in words."""
        shares = self.divide(total)
        if shares is None:
            return "no limits, as the estimates do not fit"
        words = [
            f"{_count(len(ranks), role)} {size_in_words(share)}"
            for role, ranks, share in (
                ("learner rank", self.learners, shares.learner),
                ("inference rank", self.inference, shares.inference),
            )
            if ranks
        ]
        rest = f"; {size_in_words(shares.others)} left to other processes" if self.others else ""
        return f"at most {', '.join(words)}{rest}"


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """The memory of a GPU as one process sees it, in bytes."""

    total: int
    used: int
    """By all processes on the GPU."""
    reserved: int
    """By torch's allocator in this process."""


def held_by_others(uses: Mapping[str, GpuUse]) -> int:
    """Return the bytes that the processes without a limit hold, from the `uses` of all that have one.

    Raises:
        ValueError: `uses` is empty.
    """
    if not uses:
        raise ValueError("uses={} must have the use of at least one process")
    # Samples are taken at slightly different times: the smallest blames nobody wrongly.
    used = min(use.used for use in uses.values())
    own = sum(use.reserved + CONTEXT_BYTES for use in uses.values())
    return max(0, used - own)


def size_in_words(count: float) -> str:
    """Return a number of bytes in gigabytes: `21.4 GB`."""
    return f"{count / GIGABYTE:.3g} GB"


def names_in_words(names: Sequence[str]) -> str:
    """Return names as a list: `env worker 0, env worker 1 and learner rank 0`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _count(count: int, role: str) -> str:
    return role if count == 1 else f"each of {count} {role}s"
