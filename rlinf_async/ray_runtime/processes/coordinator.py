"""The process that paces a run.

The coordinator, like the request channel, passes no tensors, and so does not load torch, which would take
time and memory at the start of a run. It reads the data of rollouts only for checkpoints, and
loads torch with the first checkpoint that it writes or resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import in_words
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.trajectory_broker import TrainedBatch, may_offer, trajectory_broker
from rlinf_async.loops.weight_broker import weight_broker
from rlinf_async.ray_runtime.processes.run_process import RunProcess
from rlinf_async.ray_runtime.publication.weight_place import WeightPlace
from rlinf_async.wire.connection import Address, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.peers import replies

if TYPE_CHECKING:
    from rlinf_async.ray_runtime.checkpoints.saved_buffer import Resumed
    from rlinf_async.ray_runtime.processes.buffer_files import BufferFiles


class Coordinator(RunProcess):
    """The process that holds the gate, the buffer, the ledger and the places of the newest weights."""

    def __init__(self, settings: RunSettings, version: int) -> None:
        self._settings = settings
        self._broker = trajectory_broker(settings, version=version)
        self._weights = weight_broker(settings, self._broker.publish)
        # Errors of the broker reach callers unchanged: the driver treats a PeerError as the consequence of
        # another failure.
        self._listener = Listener(Listening.PACE, replies(self._answer_call, as_raised=Exception))
        self._addresses: Sequence[Address] = ()
        """The addresses of the learner ranks' `HeldPieces`, in the order of the ranks."""
        self._files: BufferFiles | None = None
        self._mirrors: dict[str, tuple[int, Address]] = {}
        """By node: the inference rank that mirrors the weights for it, and the address of its mirror."""

    async def introduce(self, learners: Sequence[Address]) -> None:
        """Take the addresses of the learner ranks, in their order; called before any piece is put."""
        self._addresses = learners

    async def address(self, node: str) -> Address:
        """The address for direct calls, without Ray, from a process of `node`; see `_answer_call`."""
        return self._listener.address(node)

    async def _answer_call(self, name: str, *arguments: Any) -> Any:
        match name, arguments:
            case "admit", (shard, generation):
                return await self._broker.admit(shard, generation)
            case "put", (ticket, pieces):
                return await self._broker.put(ticket, pieces)
            case "abandon", (ticket, reason):
                return await self._broker.abandon(ticket, reason)
            case "take", (rank, batch, whole):
                return await self._broker.take(rank, batch, whole=whole)
            case "learners", ():
                return self._addresses
        raise KeyError(name)

    async def shards_lost(self, shards: Sequence[int], generation: int) -> int:
        """Give up the rollouts of `shards` after the death of their env worker, and return their number.
        Calls of the new env worker carry `generation`.
        """
        return await self._broker.shards_lost(frozenset(shards), "env worker died", generation)

    async def rank_lost(self, rank: int, generation: int) -> None:
        """Note that inference rank `rank` has died, and that calls of the new rank carry `generation`."""
        self._mirrors = {node: mirror for node, mirror in self._mirrors.items() if mirror[0] != rank}
        self._weights.rank_lost(rank, generation)

    async def pause(self) -> int:
        """Begin no further batch, and return the first that has not begun; see `TrajectoryBroker.pause`."""
        return self._broker.pause()

    async def go_on(self, settings: RunSettings) -> None:
        """Go on after `pause`, with the shards of `settings`."""
        self._settings = settings
        self._broker.go_on(settings.plan)

    async def close_gate(self) -> None:
        self._broker.close()

    async def read_ledger(self) -> Ledger:
        return self._broker.ledger

    async def save_buffer(self, folder: str) -> str | None:
        """Write the ledger and the untrained pieces into a checkpoint; return the error, if any."""
        files = await self._buffer_files()
        try:
            await files.save(Path(folder), self._settings)
        except OSError as error:
            return in_words(error)
        return None

    async def resume_buffer(self, folder: str) -> Resumed:
        """Restore ledger and buffer from a checkpoint, before any rollout starts; return the outcome."""
        return await (await self._buffer_files()).resume(Path(folder), self._settings)

    async def _buffer_files(self) -> BufferFiles:
        if self._files is None:
            # In a thread: calls of other processes are answered while torch is loaded.
            load = await asyncio.to_thread(_load_buffer_files)
            self._files = load(self._broker, self._addresses)
        return self._files

    async def pop_trained(self, batch: int) -> TrainedBatch:
        return self._broker.pop_trained(batch)

    async def collected(self, version: int) -> None:
        """Wait until no rollout needs the weights before `version` any more."""
        await self._broker.collected(version)

    async def offer_weights(self, version: int, places: Sequence[WeightPlace]) -> None:
        """Offer the weights of `version`, at `places` in the memory of the learner, to inference ranks."""
        # Before the first version there are no rollouts to wait for.
        if self._weights.version is not None:
            await may_offer(self._settings, version, self._broker)
        self._weights.offer(version, places)

    async def next_weights(
        self, rank: int, generation: int, node: str, address: Address
    ) -> tuple[int, Sequence[WeightPlace], Address] | None:
        """Wait for a newer version; return its number, its places, and the address of the mirror on `node`.

        `address` is the address of the rank's own mirror. None when no more versions follow.
        """
        offer = await self._weights.next(rank, generation)
        if offer is None:
            return None
        # The first rank of a node that asks mirrors the weights for all ranks of the node, as long as it
        # lives.
        return (*offer, self._mirrors.setdefault(node, (rank, address))[1])

    async def weights_applied(self, rank: int, version: int, generation: int) -> None:
        self._weights.applied(rank, version, generation)

    async def weights_published(self, version: int) -> float:
        return await self._weights.published(version)

    async def close_weights(self) -> None:
        self._weights.close()

    def facts(self) -> dict[str, Any]:
        ledger = self._broker.ledger
        return {
            "version": self._broker.gate.version,
            "trajectories": str(ledger),
            "refused": dict(ledger.refused),
        }


def _load_buffer_files() -> type[BufferFiles]:
    # Here and not above: the module needs torch.
    from rlinf_async.ray_runtime.processes.buffer_files import BufferFiles

    return BufferFiles
