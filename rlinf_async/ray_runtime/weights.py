"""The transport of weights from the learner to inference while both work: in memory that inference maps.

A host chooses the tensors, by a `WeightCopy`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.loops.finite import check_weights
from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime.connection import Address, this_node
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.weight_file import OpenedWeights, Place, Tensors, WeightsGone, WeightVersions
from rlinf_async.ray_runtime.weight_mirror import WeightMirror, WeightServer

Types = Mapping[str, torch.dtype]


@dataclass(frozen=True)
class Taken:
    """A copy of the weights of a learner, which is not published yet."""

    tensors: Tensors
    finite: Callable[[], bool]
    """Looks whether all of them are; False if some may not be."""
    parts: Sequence[WeightVersions]
    """Where they are, in the order in which who has nothing is to load them."""


class WeightCopy(Protocol):
    """The weights of one learner rank in memory that others map, as they are when `take` is called."""

    types: Types
    """The receivers' tensors by name, and their types: no others are sent, and these in no wider type."""
    keeps: bool
    """True if inference ranks that are started again will need all weights, not only those that change."""

    def take(self) -> Taken | None:
        """Copy the weights; every rank takes part, as shards are gathered. None on those that do not send."""


class WeightSender:
    """Copies the weights of one learner rank, and offers them to inference from a thread of its own.

    An error in the thread is raised by `sent`, and by the next `offer`.
    """

    def __init__(self, copy: WeightCopy) -> None:
        self._copy = copy
        self._server = WeightServer()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights")
        self._sending: Future[None] | None = None

    def expect(self, types: Types, *, keeps: bool = False) -> None:
        """Know the receivers: see `WeightCopy`."""
        self._copy.types, self._copy.keeps = types, keeps

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
        await self.sent()
        with spans.span("copy", version=version):
            # On every rank, even if it does not send: gathering shards is a collective.
            taken = self._copy.take()
        copied()
        if taken is not None:
            address = self._server.address
            self._sending = self._thread.submit(_send, coordinator, version, taken, address, spans)
        return time.monotonic() - began

    async def sent(self) -> None:
        """Wait until what was taken last is offered."""
        if self._sending is not None:
            await asyncio.wrap_future(self._sending)


def apply(model: torch.nn.Module, tensors: Tensors) -> None:
    """Write a copy into `model`: in place, types converted; what it does not name stays as it is."""
    model.load_state_dict(tensors, strict=False)


def types_of(model: torch.nn.Module) -> dict[str, torch.dtype]:
    """The type of each tensor that `model` can be given."""
    return {n: tensor.dtype for n, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}


class WeightClient:
    """The inference side of publication, for one rank."""

    def __init__(self, coordinator: Handle, *, rank: int, generation: int = 0) -> None:
        self._coordinator = coordinator
        self._rank, self._generation = rank, generation
        self._mirror = WeightMirror()
        self._loaded: Sequence[Place] = ()

    async def next(self) -> tuple[int, list[OpenedWeights]] | None:
        """The newest version, and what this rank lacks of it, to be loaded in order and closed."""
        gone = -1
        while True:
            offered = await self._coordinator.next_weights.remote(
                self._rank, self._generation, this_node(), self._mirror.address
            )
            if offered is None:
                return None
            version, places, nearby = offered
            found: list[OpenedWeights] = []
            try:
                for place in places:
                    if place not in self._loaded:
                        found.append(await self._open(place, nearby))
            except WeightsGone:
                for opened in found:
                    opened.close()
                if version == gone:
                    raise  # the newest version is never written over
                gone = version
            else:
                self._loaded = places
                return version, found

    async def applied(self, version: int) -> None:
        await self._coordinator.weights_applied.remote(self._rank, version, self._generation)

    async def _open(self, place: Place, nearby: Address) -> OpenedWeights:
        """Open the memory at `place`, or that of a mirror on this node: of who is `nearby`, or our own."""
        with _another_way():
            return OpenedWeights(place)
        if nearby != self._mirror.address:
            with _another_way():
                return OpenedWeights(await self._mirror.ask(nearby, place))
        return OpenedWeights(await self._mirror.hold(place))


@contextmanager
def _another_way() -> Iterator[None]:
    """Go on behind the block where memory is on another machine, or hidden, or who has it has died."""
    try:
        yield
    except WeightsGone:
        raise
    except PeerError:
        pass


def _send(coordinator: Handle, version: int, taken: Taken, address: Address, spans: SpanLog) -> None:
    with spans.span("send", version=version):
        if not taken.finite():
            # Here, off the learner's path: a NaN is found before any rank acts by it.
            check_weights(version, taken.tensors)
        for part in taken.parts:
            part.publish(version)
        places = [place for part in taken.parts if (place := part.place(address)) is not None]
        # Not ray.get, which in the process of an asynchronous actor warns of blocking its event loop.
        coordinator.offer_weights.remote(version, places).future().result()
