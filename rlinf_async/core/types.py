"""The records that travel between the loops.

They have no slots: `pickle` writes and reads a frozen dataclass with slots by Python code of `dataclasses`,
which takes five times as long.
"""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

RequestKind = Literal["train", "eval", "score"]
"""The kind of a request: actions to train on or to evaluate, or scores of actions that were taken."""

Correction = Literal["decoupled", "tis", "none"]
"""The correction of off-policy samples; see `core.objectives`."""

MAX_PROBE_SAMPLES = 32
"""Most samples per staleness, batch and learner rank on which ratios are measured. Defined here because code
that reads configs imports no torch."""

RatioLevel = Literal["token", "action", "chunk"]
"""The part of a decision that has a ratio of its own."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """Permission for one shard to collect one rollout epoch of global batch `batch`.

    `place` is the shard that would collect it in the synchronous loop: `shard` itself, unless any shard
    may collect for any place (`balance: tasks`). Place and epoch give the position of the rollout in the
    batch. `version` is the policy version that was published when the rollout was admitted; every action
    of the rollout is made by that version or a later one.
    """

    shard: int
    batch: int
    epoch: int
    place: int
    version: int
    generation: int = 0


REQUEST_NUMBERS = count()
"""Numbers the requests of this process. Spans carry the number, which matches an answer to its request."""


RequestKey = tuple[int, int]
"""(asker, number). Askers are numbered: the shards of training, those of evaluation, then the learner
ranks."""


@dataclass(frozen=True, kw_only=True)
class ActionRequest:
    """One shard asks for the actions of its `size` environments, or a learner rank for `size` scores.

    A request is never split. `number` is unique among the requests of its process. The host defines `payload`
    (observations, or a handle to them). Inference ranks on the same `node` are the first to take it.
    `generation` counts the starts of the asking process; see `core.restarts`. `asker` is the address to
    which the inference rank sends the answer; None if the answer goes through the request broker. `again` is
    True if the request was asked before, and the inference rank that had taken it is lost. `lap` is the
    batch and the epoch of the rollout that asks; None unless the rollout is for training. `asked` is the time
    at which it was sent, in seconds on the monotonic clock of `node`.
    """

    shard: int
    number: int
    size: int
    payload: Any
    mode: RequestKind = "train"
    node: str = ""
    generation: int = 0
    asker: Any = None
    again: bool = False
    lap: tuple[int, int] | None = None
    asked: float = math.nan

    @property
    def key(self) -> RequestKey:
        """Identifies the request among the requests of all living askers."""
        return self.shard, self.number


@dataclass(frozen=True, kw_only=True)
class Piece:
    """`size` whole trajectories of one shard for one learner rank, the unit that the buffer holds.

    All pieces of a run have the same size, so that learner ranks that count pieces stay in step.
    `oldest` and `newest` are the versions of the policy that acted in it.
    """

    ticket: Ticket
    part: int
    rank: int
    size: int
    oldest: int
    newest: int
    env_steps: int
    """Steps of its environments, from the beginning of the rollout to its horizon."""
    payload: Any
    skipped_env_steps: int = 0
    """Those of `env_steps` that were not made, because the episodes had ended."""
    skipped_decisions: int = 0
    """Decisions that were not requested from the policy, because the episodes had ended."""
    scores: Future[Any] | None = None
    """Scores of the piece by the proximal policy, [T + 1, B, ...]; None unless inference ranks make them. A
    learner rank that cancels the future takes the piece back, and scores it by itself."""

    @property
    def key(self) -> tuple[int, int, int]:
        """The place of the piece in its batch: (epoch, place, part), the order of the synchronous loop."""
        return (self.ticket.epoch, self.ticket.place, self.part)

    @property
    def staleness(self) -> int:
        """Policy updates between the oldest action in the piece and its training."""
        return self.ticket.batch - self.oldest


def place_of(ticket: Ticket) -> str:
    """Return the name of a rollout's place in its batch: "epoch/place"."""
    return f"{ticket.epoch}/{ticket.place}"
