"""New weights on other machines than the learner's: one rank of a node fetches them, and the others map its
copy.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.connection import Address, Answers, Callers, this_node
from rlinf_async.ray_runtime.listening import Listening
from rlinf_async.ray_runtime.weight_file import Place, WeightsGone, WeightVersions
from rlinf_async.ray_runtime.weight_parts import (
    Difference,
    Part,
    number_of_parts,
    packed_part,
    part_of,
    unpack_part,
)

PART_TIMEOUT_S = 60.0


class WeightServer:
    """Sends parts of the weights that this process holds to the machines that ask."""

    def __init__(self) -> None:
        self._answers = Answers(Listening.WEIGHTS, self._part)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights sent")
        self._pair: tuple[Place, Place | None] | None = None
        self._parts: dict[int, Part] = {}
        """Those of `_pair` that are differences, as several machines ask for the same."""

    @cached_property
    def address(self) -> Address:
        return self._answers.listener.address_for_all()

    async def _part(self, place: Place, before: Place | None, index: int) -> Part:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._find, place, before, index)

    def _find(self, place: Place, before: Place | None, index: int) -> Part:
        if self._pair != (place, before):
            self._pair, self._parts = (place, before), {}
        part = self._parts.get(index) or packed_part(place, before, index)
        if isinstance(part.content, Difference):
            self._parts[index] = part
        return part


class WeightMirror:
    """The weights of another machine in memory of this process, for all ranks of its node."""

    def __init__(self) -> None:
        self._answers = Answers(Listening.MIRRORED_WEIGHTS, self.hold)
        self._callers = Callers("who holds the weights")
        self._lock = asyncio.Lock()
        self._versions = {changes: WeightVersions(changes=changes) for changes in (False, True)}
        self._origins: dict[bool, Place] = {}
        """What is held, as it was asked for; by whether training changes it."""

    @cached_property
    def address(self) -> Address:
        """For the ranks of this node, which ask it to `hold` what they need."""
        return self._answers.listener.address(this_node())

    async def ask(self, address: Address, *question: object, timeout_s: float | None = None) -> Any:
        """Return the answer of a server or a mirror.

        Raises:
            PeerError: there is none.
        """
        try:
            return await self._callers.ask(address, *question, timeout_s=timeout_s)
        except TimeoutError as error:
            raise PeerError(f"weights were not sent for {timeout_s:g} s") from error

    async def hold(self, place: Place) -> Place:
        """Return where the version at `place` is on this machine, once it is.

        Raises:
            PeerError: it cannot be fetched.
        """
        async with self._lock:
            origin = self._origins.get(place.changes)
            if origin is not None and origin.version > place.version:
                raise WeightsGone(f"version {origin.version} of the weights is there, {place.version} not")
            if origin != place:
                await self._fetch(place)
            held = self._versions[place.changes].place(self.address)
            assert held is not None
            return held

    async def _fetch(self, place: Place) -> None:
        if place.changes and False in self._origins and place.version > self._origins[False].version:
            # All ranks have had those since the first version; for a successor they are fetched again.
            del self._origins[False]
            self._versions[False].clear()
        versions, before = self._versions[place.changes], self._origins.get(place.changes)
        old, new = versions.newest, versions.begin(place.size).numpy()
        if old is None or len(old) != len(new):
            before = None

        async def ask(index: int, before: Place | None) -> Part:
            part: Part = await self.ask(place.address, place, before, index, timeout_s=PART_TIMEOUT_S)
            return part

        def write(index: int, part: Part) -> bool:
            held = None if old is None or before is None else part_of(old.numpy(), index)
            return unpack_part(part, part_of(new, index), held)

        total = number_of_parts(place)
        coming = asyncio.create_task(ask(0, before))
        try:
            for index in range(total):
                part = await coming
                if index + 1 < total:
                    coming = asyncio.create_task(ask(index + 1, before))
                if await asyncio.to_thread(write, index, part):
                    continue
                if not await asyncio.to_thread(write, index, await ask(index, None)):
                    raise PeerError(f"part {index} of version {place.version} of the weights came damaged")
        finally:
            coming.cancel()
        versions.publish(place.version)
        self._origins[place.changes] = place
