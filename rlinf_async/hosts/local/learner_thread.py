"""The learner loop, in its own thread and event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlinf_async.core.failures import PeerError
from rlinf_async.core.scores import ToScore
from rlinf_async.core.types import Piece
from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.loops.foreign import DaemonThread
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.simulator_thread import CLOSE_TIMEOUT_S
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from rlinf_async.observe.spans import UNRECORDED, SpanLog

if TYPE_CHECKING:
    from rlinf_async.loops.ports import AnchoredLearner, PiecePort


class LearnerThread:
    """Runs `learn_batch` in a thread, so that its forward and backward passes do not block other loops.

    A cancelled `train` waits until the thread has left `learn_batch`: the present pass ends, and an error
    ends the wait for pieces.
    """

    def __init__(
        self,
        learner: AnchoredLearner,
        *,
        streaming: bool,
        spans: SpanLog = UNRECORDED,
        process: WholeProcess | None = None,
    ) -> None:
        self._learner = learner
        self._streaming = streaming
        self._spans = spans
        self._process = process or WholeProcess()
        self._thread = DaemonThread("learner")
        self._thread.submit(self._process.pin_threads)

    async def train(
        self, batch: int, pieces: PiecePort, fail: Callable[[BaseException], None]
    ) -> dict[str, float]:
        """Train global batch `batch` and return its metrics; `fail` raises its argument in every wait for
        `pieces`.
        """
        loop = asyncio.get_running_loop()
        learning = loop.run_in_executor(self._thread, self._learn, batch, PiecesFromLoop(pieces, loop))
        # asyncio prints an error that no task waits for, as after a second cancellation. Such an error only
        # follows from the one that ended the run.
        learning.add_done_callback(_heed)
        try:
            # A thread cannot be cancelled: its future is shielded, and is waited for below.
            metrics = await asyncio.shield(learning)
        finally:
            if not learning.done():
                fail(PeerError(f"batch {batch} will not be complete: the run has failed"))
                await asyncio.wait([learning], timeout=CLOSE_TIMEOUT_S)
        return metrics

    def to_score(self, payload: Any) -> ToScore:
        """Return the part of a piece that inference has to score."""
        return self._learner.to_score(payload)

    def close(self) -> None:
        """Wait, up to a deadline, for a batch that is still being trained."""
        self._thread.leave(CLOSE_TIMEOUT_S)

    def _learn(self, batch: int, pieces: PiecesFromLoop) -> dict[str, float]:
        learning = learn_batch(
            batch=batch,
            pieces=pieces,
            learner=self._learner,
            streaming=self._streaming,
            spans=self._spans,
        )
        with asyncio.Runner(loop_factory=self._process.loop) as runner:
            return runner.run(learning)


def _heed(ended: asyncio.Future[Any]) -> None:
    """Mark the error of a future as seen."""
    if not ended.cancelled():
        ended.exception()


class BufferPieces:
    """The buffer's pieces for the only learner rank; implements `loops.ports.PiecePort`."""

    def __init__(self, trajectories: TrajectoryBroker) -> None:
        self._trajectories = trajectories

    async def take(self, batch: int, *, whole: bool) -> tuple[Sequence[Piece], bool]:
        return await self._trajectories.take(0, batch, whole=whole)


class PiecesFromLoop:
    """Pieces that arrive in another event loop; implements `loops.ports.PiecePort`."""

    def __init__(self, pieces: PiecePort, loop: asyncio.AbstractEventLoop) -> None:
        self._pieces = pieces
        self._loop = loop

    async def take(self, batch: int, *, whole: bool) -> tuple[Sequence[Piece], bool]:
        taking = self._pieces.take(batch, whole=whole)
        # The broker's conditions belong to the run's event loop, so this loop cannot wait on them.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(taking, self._loop))
