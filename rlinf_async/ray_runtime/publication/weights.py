"""New weights from the learner to inference while both work: copied once, in memory that inference maps.

A learner rank copies its weights (`WeightCopy`; a host chooses the tensors) and offers them from a thread
of its own (`WeightSender`); the coordinator says where the newest version is; an inference rank fetches what
it lacks (`WeightClient`). The memory is in `weight_file`, the way to other machines in `weight_mirror`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.loops.finite import check_weights
from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.publication.weight_file import (
    OpenedWeights,
    Place,
    Tensors,
    WeightsGone,
    WeightVersions,
    bytes_of,
    write_head,
)
from rlinf_async.ray_runtime.publication.weight_mirror import WeightMirror, WeightServer
from rlinf_async.wire.connection import Address, this_node

Types = Mapping[str, torch.dtype]


@dataclass(frozen=True)
class WeightSnapshot:
    """A copy of the weights of a learner, which is not published yet."""

    tensors: Tensors
    finite: Callable[[], bool]
    """Looks whether all of them are; False if some may not be."""
    parts: Sequence[WeightVersions]
    """Where they are, in the order in which who has nothing is to load them."""


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
        on_copy: Callable[[], object] = lambda: None,
    ) -> float:
        """Copy the present weights, to be sent as those of `version`; the seconds that it took.

        `on_copy` is called before anything is sent.
        """
        began = time.monotonic()
        # First: the memory of a version is written over only when the thread has published the one before.
        await self.sent()
        with spans.span("copy", version=version):
            # On every rank, even if it does not send: gathering shards is a collective.
            snapshot = self._copy.take()
        on_copy()
        if snapshot is not None:
            address = self._server.address
            self._sending = self._thread.submit(_send, coordinator, version, snapshot, address, spans)
        return time.monotonic() - began

    async def sent(self) -> None:
        """Wait until what was taken last is offered."""
        if self._sending is not None:
            await asyncio.wrap_future(self._sending)


# -- the inference side --


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
        self._places_loaded: Sequence[Place] = ()

    async def next(self) -> tuple[int, list[OpenedWeights]] | None:
        """The newest version, and what this rank lacks of it, to be loaded in order and closed."""
        missing_version = -1
        while True:
            offer = await self._coordinator.next_weights.remote(
                self._rank, self._generation, this_node(), self._mirror.address
            )
            if offer is None:
                return None
            version, places, nearby = offer
            weights: list[OpenedWeights] = []
            try:
                for place in places:
                    if place not in self._places_loaded:
                        weights.append(await self._open(place, nearby))
            except WeightsGone:
                # Their locks would have the learner take new memory for its next version.
                for one in weights:
                    one.close()
                if version == missing_version:
                    raise  # the newest version is never written over
                missing_version = version
            else:
                self._places_loaded = places
                return version, weights

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


def _send(
    coordinator: Handle, version: int, snapshot: WeightSnapshot, address: Address, spans: SpanLog
) -> None:
    with spans.span("send", version=version):
        if not snapshot.finite():
            # Here, off the learner's path: a NaN is found before any rank acts by it.
            check_weights(version, snapshot.tensors)
        # The whole version first: `place` says where the newest is.
        for part in snapshot.parts:
            part.publish(version)
        places = [place for part in snapshot.parts if (place := part.place(address)) is not None]
        # Not ray.get, which in the process of an asynchronous actor warns of blocking its event loop.
        coordinator.offer_weights.remote(version, places).future().result()


# -- copying --


class WeightCopy:
    """The weights of one learner rank in memory that others map; a host reads the tensors of its learner.

    The first copy holds all weights, so that the receivers' frozen ones are the learner's, too; later copies
    hold the tensors that training changes: trained parameters and buffers. There is memory for two of these,
    page-locked where there is an accelerator, which are written by turns.
    """

    def __init__(self) -> None:
        self.types: Types = {}
        """The receivers' tensors by name, and their types: no others are sent, and these in no wider type."""
        self.keeps = False
        """True if inference ranks may be started again, and need all weights then, not only the changing."""
        self._frozen, self._changing = WeightVersions(changes=False), WeightVersions(changes=True)
        self._complete = False
        self._later: list[str] = []
        self._places: Tensors = {}
        self._finite: dict[torch.device, torch.Tensor] = {}
        self._unseen: list[torch.Tensor] = []

    def take(self) -> WeightSnapshot | None:
        """Copy the weights; every rank takes part, as shards are gathered. None on those that do not send.

        A host gives it.
        """
        raise NotImplementedError

    def choose(self, names: Iterable[str], *, changing: Collection[str]) -> list[str]:
        """Return the names of the tensors that are sent next; training changes those in `changing`.

        Raises:
            ValueError: inference knows none of the names.
        """
        every = list(names)
        # A module's extra state, as torch names it, is no tensor.
        known_names = [
            name for name in every if "_extra_state" not in name and (not self.types or name in self.types)
        ]
        self._later = [name for name in known_names if name in changing]
        tensors = self._later if self._complete else known_names
        if not tensors:
            raise ValueError(f"none of the learner's {len(every)} tensors has a name that inference knows")
        return tensors

    def places(self, tensors: Mapping[str, torch.Tensor], types: Types | None = None) -> Tensors:
        """Memory to `write` the `tensors` to.

        A floating-point tensor is held in its type of `types`, unless that is wider than its own; others, and
        those that `types` does not name, in their own. By default they are the types of the receivers.
        """
        types = self.types if types is None else types
        later = set(self._later)
        self._places = {}
        for versions in (self._frozen, self._changing):
            kinds = {
                name: (tensor.shape, _no_wider(types.get(name, tensor.dtype), tensor.dtype))
                for name, tensor in tensors.items()
                if (name in later) == (versions is self._changing)
            }
            if kinds:
                head, size = bytes_of(kinds)
                device = next((tensor.device for tensor in tensors.values() if tensor.is_cuda), None)
                self._places |= write_head(versions.begin(size, device=device), head)
        if self._complete and not self.keeps:
            # Every rank has applied the first version before there is a second.
            self._frozen.clear()
        self._finite, self._unseen = {}, []
        return self._places

    def write(self, place: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy `tensor` to its place, and look if it is finite; both may go on after this has returned."""
        if tensor.device.type == "cpu":
            # Whether it is finite is looked at later: here the learner waits.
            place.copy_(tensor.detach())
            self._unseen.append(place)
            return
        # On its device first, so that fewer bytes travel; the caller waits for the stream before anything
        # reads `place`.
        narrow = tensor.detach().to(place.dtype)
        place.copy_(narrow, non_blocking=True)
        # The flag stays on the device: to read it here would wait for the stream.
        finite, device = _may_be_finite(narrow), narrow.device
        self._finite[device] = finite & self._finite[device] if device in self._finite else finite

    def snapshot(self) -> WeightSnapshot | None:
        """The copy is complete: what is in its places; None if there were none."""
        # From now on `choose` gives only what training changes.
        self._complete = True
        if not self._places:
            return None
        finite = partial(_are_finite, list(self._finite.values()), self._unseen)
        result, self._places = WeightSnapshot(self._places, finite, (self._frozen, self._changing)), {}
        return result


def _may_be_finite(tensor: torch.Tensor) -> torch.Tensor:
    # A sum is quick, and finite if all numbers are, unless it overflows.
    return torch.isfinite(tensor.sum())


def _are_finite(flags: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    return all(bool(flag) for flag in flags) and all(bool(_may_be_finite(tensor)) for tensor in tensors)


def _no_wider(target: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    return target if dtype.is_floating_point and target.itemsize <= dtype.itemsize else dtype
