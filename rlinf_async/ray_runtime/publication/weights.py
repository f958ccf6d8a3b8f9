"""New weights from the learner to inference while both work: one copy, in memory that inference maps.

A learner rank copies its weights (`WeightCopy`; a host chooses the tensors) and offers them from a thread
of its own (`WeightSender`); the coordinator tells inference ranks the place of the newest version; an
inference rank opens the memory that it has not loaded yet (`WeightClient`). `weight_file` has the memory,
`weight_mirror` the way to other machines.
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
    Tensors,
    WeightsGone,
    WeightVersions,
    bytes_of,
    write_head,
)
from rlinf_async.ray_runtime.publication.weight_mirror import WeightMirror, WeightServer
from rlinf_async.ray_runtime.publication.weight_place import WeightPlace
from rlinf_async.wire.connection import Address
from rlinf_async.wire.nodes import this_node

Types = Mapping[str, torch.dtype]


@dataclass(frozen=True)
class WeightSnapshot:
    """A copy of a learner's weights that is not published yet."""

    tensors: Tensors
    finite: Callable[[], bool]
    """Returns True if all numbers are finite; False if some may not be."""
    parts: Sequence[WeightVersions]
    """The memory of the tensors; a new rank loads it in this order."""


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
        """Take the receivers' tensor types, and whether receivers may be started again; see `WeightCopy`."""
        self._copy.types, self._copy.keeps = types, keeps

    async def offer(
        self,
        version: int,
        coordinator: Handle,
        spans: SpanLog,
        *,
        on_copy: Callable[[], object] = lambda: None,
    ) -> float:
        """Copy the present weights, have the thread send them as `version`, and return the seconds taken.

        `on_copy` is called after the copy, before anything is sent.
        """
        began = time.monotonic()
        # First: the memory of a version is overwritten only when the thread has published the one before.
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
        """Wait until the last copy is offered."""
        if self._sending is not None:
            await asyncio.wrap_future(self._sending)


# -- the inference side --


def apply(model: torch.nn.Module, tensors: Tensors) -> None:
    """Write `tensors` into `model` in place, with types converted; tensors not named stay as they are."""
    model.load_state_dict(tensors, strict=False)


def types_of(model: torch.nn.Module) -> dict[str, torch.dtype]:
    """The dtype of each tensor in the state dict of `model`."""
    return {n: tensor.dtype for n, tensor in model.state_dict().items() if isinstance(tensor, torch.Tensor)}


class WeightClient:
    """The inference side of publication, for one rank."""

    def __init__(self, coordinator: Handle, *, rank: int, generation: int = 0) -> None:
        self._coordinator = coordinator
        self._rank, self._generation = rank, generation
        self._mirror = WeightMirror()
        self._places_loaded: Sequence[WeightPlace] = ()

    async def next(self) -> tuple[int, list[OpenedWeights]] | None:
        """Wait for a newer version; return its number and the memory that this rank has not loaded yet.

        The caller loads the memory in order and closes it. None when no more versions follow.
        """
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
                # While their locks are held, the learner has to take new memory for its next version.
                for one in weights:
                    one.close()
                if version == missing_version:
                    raise  # the newest version is never overwritten
                missing_version = version
            else:
                self._places_loaded = places
                return version, weights

    async def applied(self, version: int) -> None:
        await self._coordinator.weights_applied.remote(self._rank, version, self._generation)

    async def _open(self, place: WeightPlace, nearby: Address) -> OpenedWeights:
        """Open the memory itself, else the copy of this node's mirror (`nearby`), else mirror it here."""
        with _suppress_unreachable():
            return OpenedWeights(place)
        if nearby != self._mirror.address:
            with _suppress_unreachable():
                return OpenedWeights(await self._mirror.servers.call(nearby, place, timeout_s=None))
        return OpenedWeights(await self._mirror.hold(place))


@contextmanager
def _suppress_unreachable() -> Iterator[None]:
    """Suppress a PeerError, so that the next source is tried; WeightsGone passes.

    Memory is out of reach if it is on another machine, hidden from this process, or its process has died.
    """
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
            # Here, in the sender's thread: a NaN is found before any inference rank loads it.
            check_weights(version, snapshot.tensors)
        # Publish all parts first: `place` gives the newest version.
        for part in snapshot.parts:
            part.publish(version)
        places = [place for part in snapshot.parts if (place := part.place(address)) is not None]
        # Not `ray.get`, which warns in an asynchronous actor that it blocks the event loop.
        coordinator.offer_weights.remote(version, places).future().result()


# -- copying --


class WeightCopy:
    """The weights of one learner rank in memory that other processes map; a host reads its learner's tensors.

    The first copy holds all weights, so that frozen weights, too, are the learner's in every inference rank;
    later copies hold the tensors that training changes: trained parameters and buffers. These have memory for
    two versions, written by turns, and page-locked where there is an accelerator.
    """

    def __init__(self) -> None:
        self.types: Types = {}
        """The dtypes of the receivers' tensors by name: no other tensors are sent, and none in a wider
        dtype."""
        self.keeps = False
        """True if inference ranks may be started again; a new rank needs the frozen weights, too."""
        self._frozen, self._changing = WeightVersions(changes=False), WeightVersions(changes=True)
        self._complete = False
        self._later: list[str] = []
        self._places: Tensors = {}
        self._finite: dict[torch.device, torch.Tensor] = {}
        self._unseen: list[torch.Tensor] = []

    def take(self) -> WeightSnapshot | None:
        """Copy the weights; every learner rank takes part, as shards are gathered. A host gives it.

        None on learner ranks that do not send.
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
        """Return memory to `write` the `tensors` to, by name.

        A floating-point tensor gets its dtype in `types` (default: the receivers' dtypes), unless that is
        wider than its own. All other tensors keep their own dtype.
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
        """Copy `tensor` to its place, and check that it is finite; both may end after this has returned."""
        if tensor.device.type == "cpu":
            # The sender's thread checks this tensor later: here the learner would wait.
            place.copy_(tensor.detach())
            self._unseen.append(place)
            return
        # Converted on its device first, so that fewer bytes travel. The caller waits for the stream before
        # anything reads `place`.
        narrow = tensor.detach().to(place.dtype)
        place.copy_(narrow, non_blocking=True)
        # The flag stays on the device: to read it here would wait for the stream.
        finite, device = _may_be_finite(narrow), narrow.device
        self._finite[device] = finite & self._finite[device] if device in self._finite else finite

    def snapshot(self) -> WeightSnapshot | None:
        """Return the complete copy; None if it has no tensors."""
        # From now on `choose` gives only the tensors that training changes.
        self._complete = True
        if not self._places:
            return None
        finite = partial(_are_finite, list(self._finite.values()), self._unseen)
        result, self._places = WeightSnapshot(self._places, finite, (self._frozen, self._changing)), {}
        return result


def _may_be_finite(tensor: torch.Tensor) -> torch.Tensor:
    # A sum is quick to compute, and finite if all numbers are finite, unless it overflows.
    return torch.isfinite(tensor.sum())


def _are_finite(flags: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
    return all(bool(flag) for flag in flags) and all(bool(_may_be_finite(tensor)) for tensor in tensors)


def _no_wider(target: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    return target if dtype.is_floating_point and target.itemsize <= dtype.itemsize else dtype
