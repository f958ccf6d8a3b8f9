"""The coordinator's part of a checkpoint: the ledger, and the pieces that have not been trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from rlinf_async.ray_runtime.checkpoints.saved_buffer import Resumed, resume_buffer, save_buffer
from rlinf_async.ray_runtime.processes.rollout_data import LearnerRanks
from rlinf_async.wire.connection import Address


class BufferFiles:
    """Writes a broker's buffer into checkpoints, and restores it; the learner ranks hold the data."""

    def __init__(self, broker: TrajectoryBroker, learners: Sequence[Address]) -> None:
        """`learners` are the addresses of the ranks' `HeldPieces`, in the order of the ranks."""
        self._broker, self._learners = broker, LearnerRanks(learners)

    async def save(self, folder: Path, settings: RunSettings) -> None:
        """Write the ledger and the untrained pieces.

        Raises:
            OSError: the disk is full, or the folder cannot be written.
        """
        gate, buffer = self._broker.gate, self._broker.buffer
        await save_buffer(folder, gate.version, buffer, settings, self._learners.show)

    async def resume(self, folder: Path, settings: RunSettings) -> Resumed:
        """Restore ledger and buffer before any rollout starts, and return the outcome."""
        gate, buffer = self._broker.gate, self._broker.buffer
        # In a list, so that the data can be dropped below: the buffer keeps the piece, a learner rank the
        # data.
        result = resume_buffer(folder, gate.version, gate, buffer, settings, lambda data: [data])
        for piece in buffer.untrained():
            (data,) = piece.payload
            await self._learners.give(replace(piece, payload=data))
            piece.payload.clear()
        return result
