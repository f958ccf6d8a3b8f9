"""The parts that a host provides to the loops, as Protocols."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from rlinf_async.core.types import ActionRequest, Piece, Ticket

if TYPE_CHECKING:
    from rlinf_async.core.scores import ToScore
    from rlinf_async.core.tensors import Episodes


class ShardEnv(Protocol):
    """A batch of environments that step together. The host chooses the type of their outputs.

    Every method raises `ShardFailure` if the environments raise an error or do not answer in time.
    """

    @property
    def horizon(self) -> int:
        """Decisions in one rollout, at most."""

    async def start(self) -> Any:
        """Begin a rollout: reset, or continue from the end of the last one. Return the first output."""

    async def step(self, answer: Any) -> Any:
        """Apply the actions in `answer` to the environments that wait for them, and return the next
        output."""

    def waiting(self, output: Any) -> int:
        """The number of environments that need an action after `output`. At 0 the rollout has ended: further
        steps would count for nothing.
        """

    def observation(self, output: Any) -> Any:
        """Make the payload of the next `ActionRequest`, for the waiting environments, from the output of a
        step."""

    async def finish(self) -> None:
        """Prepare the initial states of the next rollout, after one has ended."""

    async def restart(self) -> None:
        """Close the environments, and build new ones of the same tasks with another seed.

        Errors of closing are ignored, as failed environments may be in any state. Errors of building are a
        `ShardFailure`.
        """


class TaskTaker(Protocol):
    """A `ShardEnv` that can play the rollouts of another shard."""

    def take_on(self, place: int, rollout: int) -> None:
        """The next `start` begins rollout number `rollout`, from 0, of shard `place`, with the tasks and the
        groups of its environments. Called before every rollout, or never."""

    def stand_at(self, place: int, rollout: int) -> None:
        """The next `start` begins rollout number `rollout`, from 0, of this shard, which has number `place`.
        Called before every rollout of runs that never call `take_on`."""


class TrainShardEnv(ShardEnv, TaskTaker, Protocol):
    """The training environments of a shard, which step together."""

    def keep_in(self, rows: Any) -> None:
        """Keep the observations of rollouts in `rows`, a `hosts.contract.Rows`."""

    async def renew(self, step: int) -> None:
        """Close the environments, and build new ones with a seed that depends on `step` alone."""


class EvalShardEnv(ShardEnv, Protocol):
    """The evaluation environments of a shard, which step together, and the statistics of their episodes."""

    episodes: Episodes


class Recorder(Protocol):
    """Collects one rollout of one shard. A rollout that fails before `build` leaves no data behind."""

    def append(self, output: Any, answer: Any) -> None:
        """Record a decision: the output of the environments, and the answer of the policy."""

    async def complete(self, output: Any) -> None:
        """Wait for results of steps up to the last output that come after their step, such as the scores of a
        reward model. The environments may play the next rollout meanwhile."""

    def build(self, output: Any, answer: Any) -> Sequence[Piece]:
        """Finish with the last output and the answer with its bootstrap value, which is None if no
        environment waited for actions; return the pieces for the learner.

        Raises:
            ShardFailure: the environments have returned numbers that are not finite.
        """


class PolicyPort(Protocol):
    """The env side of inference."""

    def rollout(self, shard: int) -> AbstractAsyncContextManager[None]:
        """Mark `shard` as in flight inside the block, for batchers that count the shards in flight."""

    async def act(self, request: ActionRequest) -> Any:
        """The answer to one request, which joins a batch on an inference rank.

        Raises:
            PeerError: inference failed.
            DeadlineError: no answer came in time.
        """


class RequestPort(Protocol):
    """The inference side: batches of requests, and their answers."""

    async def take(self) -> Sequence[Any] | None:
        """The next batch of requests for this rank; None after the end of all env loops."""

    def answering(self, batch: Sequence[Any]) -> AbstractAsyncContextManager[list[Any]]:
        """The block must fill the list with one answer per request; its end sends the answers.

        If the block raises, the requests fail, so that no shard waits for a failed forward pass.
        """


class Policy(Protocol):
    """A policy on an inference rank. Weights change between calls of `act`, never inside one."""

    async def act(self, batch: Sequence[Any]) -> Sequence[Any]:
        """Return one answer per request, in order; a `PeerError` for a request that cannot be answered."""


class LoadablePolicy(Protocol):
    """A policy that takes new weights while it serves."""

    async def load(self, version: int, data: Any) -> None:
        """Load the weights `data`; after the forward pass under way, all passes use `version`."""


class WeightPort(Protocol):
    """The inference side of publication, for one rank."""

    async def next(self) -> tuple[int, Any] | None:
        """Wait for weights that are newer than those applied last; None when no more will come."""

    async def applied(self, version: int) -> None:
        """Report that `version` makes all actions from now on."""


class TrajectoryPort(Protocol):
    """Admits rollouts and takes their trajectories."""

    async def admit(self, shard: int) -> Ticket | None:
        """Wait until `shard` may start a rollout; None when no more will start."""

    async def put(self, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        """Hand over the rollout of `ticket`."""

    async def abandon(self, ticket: Ticket, reason: str) -> None:
        """Give up the rollout of `ticket`: it counts as refused for `reason`, and is collected again."""


TakenPieces = tuple[Sequence[Piece], bool]
"""(pieces of a batch, True if they are its last)."""


class PiecePort(Protocol):
    """The learner side of the buffer, for one rank."""

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        """Take the pieces of `batch` that have arrived and were not taken yet; True if they are the last.

        Waits for at least one, or for all of them when `whole`.
        """


class Learner(Protocol):
    """One learner rank."""

    def begin(self, batch: int) -> None: ...

    def accept(self, pieces: Sequence[Piece]) -> bool:
        """Add `pieces` to those that have arrived, and train on, or keep, one group of them; return True
        while another group is complete.
        """

    def finish(self) -> dict[str, float]:
        """The batch is complete: make the remaining optimizer steps, and return the metrics."""


class AnchoredLearner(Learner, Protocol):
    """A learner rank that lets inference ranks score some pieces of its batches."""

    def to_score(self, payload: Any) -> ToScore:
        """Return the samples to score of a piece. Called from any thread."""
