"""The parts that a host provides to the loops, as Protocols."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_async.core.types import ActionRequest, Piece, Ticket

if TYPE_CHECKING:
    from rlinf_async.core.scores import ToScore


class ShardEnv(Protocol):
    """A batch of environments that step together. Outputs are the host's own type.

    What the environments raise, and their silence, come as a `ShardFailure` out of every method.
    """

    @property
    def horizon(self) -> int:
        """Decisions in one rollout, at most."""

    async def start(self) -> Any:
        """Begin a rollout: reset, or carry on where the last one ended."""

    async def step(self, answer: Any) -> Any:
        """Apply the actions in `answer`, to the environments that were waiting for them."""

    def waiting(self, output: Any) -> int:
        """The number of environments that need an action after the output of a step. With none the rollout
        has ended: whatever followed would count nothing.
        """

    def observation(self, output: Any) -> Any:
        """The payload of the `ActionRequest` that asks for the next actions of those that are waiting, made
        of the output of a step.
        """

    async def finish(self) -> None:
        """A rollout has ended: prepare the next initial states."""

    async def restart(self) -> None:
        """Close the environments, and build others of the same tasks with another seed.

        Closing may fail: nothing is known of what has failed. Building that fails is a `ShardFailure`.
        """


class TaskTaker(Protocol):
    """A `ShardEnv` whose environments can play what those of another shard would."""

    def take_on(self, place: int, rollout: int) -> None:
        """The next `start` begins rollout number `rollout`, from 0, of the environments of shard `place`:
        with their tasks and their groups. Said before every rollout, or never."""

    def stand_at(self, place: int, rollout: int) -> None:
        """The next `start` begins rollout number `rollout`, from 0, of this shard, whose number is `place`.
        Said before every rollout where `take_on` is never said."""


class Recorder(Protocol):
    """Collects one rollout of one shard. Nothing of a rollout that is not built is kept anywhere."""

    def append(self, output: Any, answer: Any) -> None:
        """A decision: what the environments showed, and what the policy answered."""

    def build(self, output: Any, answer: Any) -> Sequence[Piece]:
        """Close with the last output and its bootstrap value, None where no environment was waiting for an
        answer; the pieces for the learner.

        Raises:
            ShardFailure: the environments have given numbers that are not finite.
        """


class PolicyPort(Protocol):
    """The env side of inference."""

    def rollout(self, shard: int) -> AbstractAsyncContextManager[None]:
        """Marks the time in which `shard` is in flight, for batchers that count."""

    async def act(self, request: ActionRequest) -> Any:
        """The answer to one request; joins a dynamic batch on the far side.

        Raises:
            PeerError: inference failed.
            DeadlineError: no answer came in time.
        """


class RequestPort(Protocol):
    """The inference side: batches of requests, and their answers."""

    async def take(self) -> Sequence[Any] | None:
        """The next batch of requests for this rank, or None when all env shards have hung up."""

    def answering(self, batch: Sequence[Any]) -> AbstractAsyncContextManager[list[Any]]:
        """A block that fills the list with one answer per request; leaving it sends them.

        An exception inside it fails the requesters, so that no shard waits for a dead forward pass.
        """


class Policy(Protocol):
    """A policy on an inference rank. Weights change between calls of `act`, never inside one."""

    async def act(self, batch: Sequence[Any]) -> Sequence[Any]:
        """One answer per request, in order; a `PeerError` in the place of one that cannot be given."""


class LoadablePolicy(Protocol):
    """A policy whose weights can be replaced while it serves."""

    async def load(self, version: int, data: Any) -> None:
        """Act by `version` from now on, after any forward pass that runs."""


class WeightPort(Protocol):
    """The inference side of publication, for one rank."""

    async def next(self) -> tuple[int, Any] | None:
        """Wait for weights that are newer than those applied last; None when there will be no more."""

    async def applied(self, version: int) -> None:
        """Every action from now on is made by `version`."""


class TrajectoryPort(Protocol):
    """Admits rollouts and takes their trajectories."""

    async def admit(self, shard: int) -> Ticket | None:
        """Wait until `shard` may start a rollout; None when there will be no more."""

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Hand over the rollout of `ticket`."""

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        """Give up the rollout of `ticket`, which is counted as refused for `reason` and collected again."""


TakenPieces = tuple[Sequence[Piece], bool]
"""Pieces of a batch, and whether they are its last."""


class PiecePort(Protocol):
    """The learner side of the buffer, for one rank."""

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        """Pieces of `batch` that have arrived and are not taken yet, and whether they are the last.

        Waits for at least one, or for all of them when `whole`.
        """


class Learner(Protocol):
    """One learner rank."""

    def begin(self, batch: int) -> None: ...

    def accept(self, pieces: Sequence[Piece]) -> bool:
        """Train on, or keep, as many of the pieces that have arrived as are taken in together; True while
        there are more.
        """

    def finish(self) -> dict[str, float]:
        """The batch is complete: the remaining optimizer steps, and the metrics."""


class AnchoredLearner(Learner, Protocol):
    """A learner rank whose batches inference may score, too."""

    def to_score(self, payload: Any) -> ToScore:
        """Return what is to be scored of a piece; it is asked for in any thread."""
