"""The records that travel between the loops."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

Mode = Literal["train", "eval", "score"]
"""The kind of a request: actions to train on or to evaluate, or scores of actions that were taken."""

Correction = Literal["decoupled", "tis", "none"]
"""The correction of off-policy samples; see `core.objectives`."""

MAX_PROBE_SAMPLES = 32
"""Samples per staleness, batch and learner rank on which ratios are measured at most. It
stands here, as readers of configs do without torch."""

RatioLevel = Literal["token", "action", "chunk"]
"""The part of a decision that has a ratio of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Permission for one shard to collect one rollout epoch of global batch `batch`.

    `place` is the shard that would collect it in the synchronous loop: `shard` itself, unless any shard
    may collect for any place (`balance: tasks`). Place and epoch say where it stands in the batch.
    `version` is the policy version that was published when the rollout was admitted; every action of
    the rollout is made by that version or a later one.
    """

    shard: int
    batch: int
    epoch: int
    place: int
    version: int
    generation: int = 0


REQUEST_NUMBERS = count()
"""Numbers for the requests of this process, which spans bear to tell requests and answers apart."""


RequestKey = tuple[int, int]
"""A shard, or a learner rank that is numbered on, and its own number of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRequest:
    """One shard asks for the actions of its `size` environments, or a learner rank for `size` scores.

    A request is never split. `number` is the asker's own: no other request of its process has it. `payload`
    is the host's business (observations, or a handle to them). The inference ranks of the same `node` answer
    it first. `generation` is the life of the process that asks; see `core.restarts`. `asker` is the place
    to which the answer is sent, where it does not go through who hands out requests. `again` is True if the
    request was asked before, and the inference rank is lost that had taken it. `lap` is the batch and the
    epoch of the rollout that asks, of one for training.
    """

    shard: int
    number: int
    size: int
    payload: Any
    mode: Mode = "train"
    node: str = ""
    generation: int = 0
    asker: Any = None
    again: bool = False
    lap: tuple[int, int] | None = None

    @property
    def key(self) -> RequestKey:
        """The name of the request among those of all askers that live."""
        return self.shard, self.number


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Those of them that were left out, as the episodes had ended."""
    skipped_decisions: int = 0
    """Decisions that no policy was asked for, as the episodes had ended."""
    scores: Future[Any] | None = None
    """Scores of the piece by the policy that anchors it, [T + 1, B, ...], where inference is asked for them:
    whoever cancels it takes the piece back."""

    @property
    def key(self) -> tuple[int, int, int]:
        """The place of the piece in its batch: (epoch, place, part), the order of the synchronous loop."""
        return (self.ticket.epoch, self.ticket.place, self.part)

    @property
    def staleness(self) -> int:
        """Policy updates between the oldest action in the piece and its training."""
        return self.ticket.batch - self.oldest
