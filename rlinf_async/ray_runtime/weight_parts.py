"""Parts of a version of weights as they travel between machines: what has changed, where that is shorter.

Parts are bytes; what they mean is not looked at. Each bears a checksum of all of its bytes.
"""

from __future__ import annotations

import zlib
from contextlib import closing
from typing import NamedTuple

import numpy as np

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.weight_file import OpenedWeights, Place, WeightsGone

PART_BYTES = 2**24
WORD = np.dtype(np.uint16)
"""What is compared: numbers of 16 bits. Where 2 % of them change, 8 % of words of 64 bits do."""
NEAR_WORDS = 2**16
"""Words are numbered among so many, so that their numbers have 16 bits, too."""


class Difference(NamedTuple):
    """The words of a part that have changed."""

    counts: np.ndarray
    """How many there are among each `NEAR_WORDS` words."""
    numbers: np.ndarray
    words: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes + self.numbers.nbytes + self.words.nbytes


class Part(NamedTuple):
    """A part, for a receiver that has an earlier version or nothing."""

    checksum: int
    content: bytes | Difference


def number_of_parts(place: Place) -> int:
    """Return how many parts the version at `place` has."""
    return -(-place.size // PART_BYTES)


def part_of(body: np.ndarray, index: int) -> np.ndarray:
    """Return part `index` of the bytes of a version, in their own memory."""
    return body[index * PART_BYTES : (index + 1) * PART_BYTES]


def packed_part(place: Place, before: Place | None, index: int) -> Part:
    """Return part `index` of the version at `place`, for who has the one at `before`.

    Raises:
        WeightsGone: it is not there any more.
    """
    try:
        opened = OpenedWeights(place)
    except PeerError as error:
        # Of this very process, which has closed it: there are newer ones.
        raise WeightsGone(str(error)) from error
    with closing(opened):
        new = part_of(opened.body.numpy(), index)
        changed = None if before is None else _since(before, new, index)
        return Part(zlib.crc32(new.data), new.tobytes() if changed is None else changed)


def unpack_part(part: Part, target: np.ndarray, before: np.ndarray | None) -> bool:
    """Write a part to `target`; False if it is damaged. `before` is the part that the receiver has."""
    if isinstance(part.content, bytes):
        if len(part.content) != len(target):
            return False
        target[:] = np.frombuffer(part.content, np.uint8)
    elif before is None:
        return False
    else:
        target[:] = before
        change(target, part.content)
    return zlib.crc32(target.data) == part.checksum


def difference(old: np.ndarray, new: np.ndarray) -> Difference | None:
    """Return what makes the bytes `new` of as many bytes `old`; None if it is no shorter than `new`."""
    words = new.view(WORD)
    changed = np.flatnonzero(old.view(WORD) != words)
    near, numbers = np.divmod(changed, NEAR_WORDS)
    found = Difference(np.bincount(near), numbers.astype(np.uint16), words[changed])
    return found if found.nbytes < new.nbytes else None


def change(target: np.ndarray, by: Difference) -> None:
    """Write the words that have changed into the bytes `target`."""
    near = np.repeat(np.arange(len(by.counts)) * NEAR_WORDS, by.counts)
    target.view(WORD)[near + by.numbers] = by.words


def _since(before: Place, new: np.ndarray, index: int) -> Difference | None:
    """Return the difference of a part from that of `before`; None if that is gone, or a difference no use."""
    try:
        earlier = OpenedWeights(before)
    except PeerError:
        return None  # its memory has been used again
    with closing(earlier):
        old = part_of(earlier.body.numpy(), index)
        return difference(old, new) if len(old) == len(new) else None
