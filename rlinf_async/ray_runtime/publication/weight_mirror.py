"""New weights on other machines than the learner's: one rank of a node fetches them, the others map its copy.

They travel in parts. A part is the difference from the version that the node has (`weight_difference`) if
that is shorter than the bytes themselves, and carries a checksum of these bytes.
"""

from __future__ import annotations

import asyncio
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.publication import weight_difference
from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights, WeightsGone, WeightVersions
from rlinf_async.ray_runtime.publication.weight_place import WeightPlace
from rlinf_async.wire.connection import Address, Listener
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.peers import Peers, replies

PART_TIMEOUT_S = 60.0


class WeightServer:
    """Sends parts of the weights that this process holds to the mirrors of other nodes."""

    def __init__(self) -> None:
        self._listener = Listener(Listening.WEIGHTS, replies(self._part))
        # One thread: `_pair` and `_parts` have no lock.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights sent")
        self._pair: tuple[WeightPlace, WeightPlace | None] | None = None
        self._parts: dict[int, Part] = {}
        """The differences between the versions of `_pair`, by index: several nodes ask for each."""

    @cached_property
    def address(self) -> Address:
        return self._listener.address_for_all()

    async def _part(self, place: WeightPlace, before: WeightPlace | None, index: int) -> Part:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._find, place, before, index)

    def _find(self, place: WeightPlace, before: WeightPlace | None, index: int) -> Part:
        if self._pair != (place, before):
            self._pair, self._parts = (place, before), {}
        part = self._parts.get(index) or packed_part(place, before, index)
        if part.is_difference:
            self._parts[index] = part
        return part


class WeightMirror:
    """The weights of another machine in memory of this process, for all ranks of its node."""

    def __init__(self) -> None:
        self._listener = Listener(Listening.MIRRORED_WEIGHTS, replies(self.hold))
        self.servers = Peers("the weight server")
        """The processes that this one fetches weights from: learners, and mirrors of this node."""
        self._lock = asyncio.Lock()
        self._versions = {changes: WeightVersions(changes=changes) for changes in (False, True)}
        self._origins: dict[bool, WeightPlace] = {}
        """The place on the other machine of each version that is held; the key is `WeightPlace.changes`."""

    @cached_property
    def address(self) -> Address:
        """The address at which other ranks of this node have the mirror `hold` a version."""
        return self._listener.address(this_node())

    async def hold(self, place: WeightPlace) -> WeightPlace:
        """Fetch the version at `place`, unless it is held, and return its place on this machine.

        Raises:
            PeerError: the version cannot be fetched.
        """
        # One at a time: ranks that ask for the same version meanwhile find it here.
        async with self._lock:
            origin = self._origins.get(place.changes)
            if origin is not None and origin.version > place.version:
                raise WeightsGone(f"version {origin.version} of the weights is there, {place.version} not")
            if origin != place:
                await self._fetch(place)
            copy = self._versions[place.changes].place(self.address)
            assert copy is not None
            return copy

    async def _fetch(self, place: WeightPlace) -> None:
        if place.changes and False in self._origins and place.version > self._origins[False].version:
            # All ranks loaded the frozen weights with the first version; for a restarted rank they are
            # fetched again.
            del self._origins[False]
            self._versions[False].clear()
        versions, before = self._versions[place.changes], self._origins.get(place.changes)
        old, new = versions.newest, versions.begin(place.size).numpy()
        # A difference needs two versions of the same size.
        if old is None or len(old) != len(new):
            before = None

        async def ask(index: int, before: WeightPlace | None) -> Part:
            part: Part = await self.servers.call(
                place.address, place, before, index, timeout_s=PART_TIMEOUT_S
            )
            return part

        def write(index: int, part: Part) -> bool:
            base = None if old is None or before is None else part_of(old.numpy(), index)
            return unpack_part(part, part_of(new, index), base)

        total = number_of_parts(place)
        # One part ahead: the next one travels while this one is checked and written.
        coming = asyncio.create_task(ask(0, before))
        try:
            for index in range(total):
                part = await coming
                if index + 1 < total:
                    coming = asyncio.create_task(ask(index + 1, before))
                if await asyncio.to_thread(write, index, part):
                    continue
                # Damaged, or a difference from other bytes than those held here: ask for the whole part.
                if not await asyncio.to_thread(write, index, await ask(index, None)):
                    raise PeerError(f"part {index} of version {place.version} of the weights came damaged")
        finally:
            coming.cancel()
        # Only when all parts have come: a failed fetch leaves the previous version in place.
        versions.publish(place.version)
        self._origins[place.changes] = place


PART_BYTES = 2**24


class Part(NamedTuple):
    """A part of a version, as it is sent."""

    checksum: int
    """CRC-32 of the bytes of the part."""
    content: bytes
    """The bytes themselves, or their difference from the version that the receiver has."""
    is_difference: bool


def number_of_parts(place: WeightPlace) -> int:
    """Return how many parts the version at `place` has."""
    return -(-place.size // PART_BYTES)


def part_of(body: np.ndarray, index: int) -> np.ndarray:
    """Return a view of part `index` of the bytes of a version."""
    return body[index * PART_BYTES : (index + 1) * PART_BYTES]


def packed_part(place: WeightPlace, before: WeightPlace | None, index: int) -> Part:
    """Return part `index` of the version at `place`, for a receiver of the version at `before`, if any.

    Raises:
        WeightsGone: the version has been overwritten or closed.
    """
    try:
        source = OpenedWeights(place)
    except PeerError as error:
        # The memory belongs to this very process, which has closed it: there are newer versions.
        raise WeightsGone(str(error)) from error
    with closing(source):
        new = part_of(source.body.numpy(), index)
        difference = None if before is None else _since(before, new, index)
        content = new.tobytes() if difference is None else difference
        return Part(zlib.crc32(new.data), content, difference is not None)


def unpack_part(part: Part, target: np.ndarray, before: np.ndarray | None) -> bool:
    """Write a part to `target`; return False if the part is damaged.

    `before` holds the bytes of the same part in the version that the receiver has.
    """
    if not part.is_difference:
        if len(part.content) != len(target):
            return False
        target[:] = np.frombuffer(part.content, np.uint8)
    elif before is None:
        return False
    else:
        target[:] = before
        try:
            weight_difference.apply(target, part.content)
        except weight_difference.DamagedDifference:
            return False
    return zlib.crc32(target.data) == part.checksum


def _since(before: WeightPlace, new: np.ndarray, index: int) -> bytes | None:
    """Return the difference of a part from that of `before`.

    None if `before` has been overwritten, has another size, or the difference is longer than the part.
    """
    try:
        earlier = OpenedWeights(before)
    except PeerError:
        return None  # its memory has been used again
    with closing(earlier):
        old = part_of(earlier.body.numpy(), index)
        return weight_difference.encode(old, new) if len(old) == len(new) else None
