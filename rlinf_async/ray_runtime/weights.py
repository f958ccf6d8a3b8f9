"""The transport of weights from the learner to inference while both work: in chunks, in Ray's object
store.

A host chooses the tensors, by a `WeightCopy`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import ray
import torch

from rlinf_async.core.host_memory import BLOCK_BYTES, host_tensors
from rlinf_async.loops.finite import check_weights
from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.wire import borrow, pack

Chunk = dict[str, torch.Tensor]
Types = Mapping[str, torch.dtype]


class WeightCopy(Protocol):
    """The weights of one learner rank in CPU memory, as they are when `take` is called."""

    types: Types
    """The receivers' tensors by name, and their types: no others are sent, and these in no wider type."""

    def take(self) -> list[Chunk]:
        """The weights in chunks of bounded size; every rank takes part, as their shards are gathered.

        The memory may be that of the copy before. There are no chunks on ranks that do not send.
        """


class WeightSender:
    """Copies the weights of one learner rank, and offers them to inference from a thread of its own.

    Every rank takes part in a copy, because shards are gathered for it; the one that `sends` keeps it.
    An error in the thread is raised by `sent`, and by the next `offer`.
    """

    def __init__(self, copy: WeightCopy, *, sends: bool) -> None:
        self._copy = copy
        self._sends = sends
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._sending: Future[None] | None = None
        self._all: set[str] = set()
        """The names of all weights: of those in the first copy."""

    def expect(self, types: Types) -> None:
        """The receivers' tensors by name, and their types: no others are sent, and these in no wider type."""
        self._copy.types = types

    async def offer(
        self,
        version: int,
        coordinator: Handle,
        spans: SpanLog,
        *,
        copied: Callable[[], object] = lambda: None,
    ) -> float:
        """Copy the present weights, to be sent as those of `version`; the seconds that it took.

        `copied` is called before anything is sent.
        """
        began = time.monotonic()
        await self.sent()  # the memory of one copy serves all: it must have left
        with spans.span("copy", version=version):
            # On every rank, even if it does not send: gathering shards is a collective.
            chunks = self._copy.take()
        copied()
        if self._sends:
            names = {name for chunk in chunks for name in chunk}
            # The first copy holds all weights; a later one that names fewer is partial.
            self._all = self._all or names
            whole = names == self._all
            self._sending = self._thread.submit(_send, coordinator, version, chunks, spans, whole)
        return time.monotonic() - began

    async def sent(self) -> None:
        """Wait until what was offered last has left this process."""
        if self._sending is not None:
            await asyncio.wrap_future(self._sending)


def apply(model: torch.nn.Module, chunks: Sequence[dict[str, Any]]) -> None:
    """Write a copy, packed, into `model`: in place, types converted; what it does not name stays as it is."""
    for chunk in chunks:
        # `borrow` maps read-only memory of Ray's store; `load_state_dict` only reads from it.
        model.load_state_dict(borrow(chunk), strict=False)


def types_of(model: torch.nn.Module) -> dict[str, torch.dtype]:
    """The type of each tensor that `model` can be given."""
    return {n: tensor.dtype for n, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}


class WeightClient:
    """The inference side of publication, for one rank."""

    def __init__(self, coordinator: Handle, *, rank: int, generation: int = 0) -> None:
        self._coordinator = coordinator
        self._rank, self._generation = rank, generation

    async def next(self) -> tuple[int, list[dict[str, Any]]] | None:
        """The newest version and its chunks, packed: arrays in the object store's own memory."""
        offered = await self._coordinator.next_weights.remote(self._rank, self._generation)
        if offered is None:
            return None
        version, references = offered
        # Awaiting a reference leaves the event loop free, which `ray.get` would block.
        return version, list(await asyncio.gather(*references))

    async def applied(self, version: int) -> None:
        await self._coordinator.weights_applied.remote(self._rank, version, self._generation)


def chunks_of(memory: Chunk) -> list[Chunk]:
    """Parts of `memory` of about a block each, for what travels whole: one object of the store."""
    chunks: list[Chunk] = [{}]
    filled = 0
    for name, tensor in memory.items():
        if filled and filled + tensor.nbytes > BLOCK_BYTES:
            chunks.append({})
            filled = 0
        chunks[-1][name] = tensor
        filled += tensor.nbytes
    return [chunk for chunk in chunks if chunk]


def places_for(tensors: Mapping[str, torch.Tensor], types: Types, present: Chunk) -> Chunk:
    """CPU memory to copy `tensors` to: `present`, if it holds the same names, or else new.

    It is page-locked where there is a CUDA device. A floating-point tensor is held in its type of `types`,
    unless that is wider than its own; others, and those that `types` does not name, in their own.
    """
    if present.keys() == tensors.keys():
        return present
    pinned = any(tensor.is_cuda for tensor in tensors.values())
    like = [
        (tensor.shape, _no_wider(types.get(name, tensor.dtype), tensor.dtype))
        for name, tensor in tensors.items()
    ]
    return dict(zip(tensors, host_tensors(like, pinned=pinned), strict=True))


def _no_wider(target: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    return target if dtype.is_floating_point and target.itemsize <= dtype.itemsize else dtype


def _send(coordinator: Handle, version: int, chunks: Sequence[Chunk], spans: SpanLog, whole: bool) -> None:
    with spans.span("send", version=version):
        for chunk in chunks:
            # Here, off the learner's path: a NaN is found before any rank acts by it.
            check_weights(version, chunk)
        references = [ray.put(pack(chunk)) for chunk in chunks]
        # Not ray.get, which in the process of an asynchronous actor warns of blocking its event loop.
        coordinator.offer_weights.remote(version, references, whole).future().result()
