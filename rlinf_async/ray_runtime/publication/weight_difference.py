"""The difference of two versions of weights in few bytes, exact for any content.

Versions are compared in words of 16 bits. Neighbours among numbers in bfloat16 (or float16) are neighbours
among these words, too, and a few optimizer steps move most numbers to a neighbour, or not at all. So a
difference has, for one slice of a version after the other:

* two bits for each word: the word is the same, one lower, one higher, or has moved farther;
* how far each of the last kind has moved: the low bytes of these distances, then the high ones.

If most bytes of the bits, or most high bytes, are zero, only the other bytes and their positions are written.
A slice with many words that have moved farther, as in float32, is written as it is.

All of this is done by numpy. General compressors take several times as long for the same words: see
`python -m benchmarks.micro differences`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

WORD_TYPE = np.dtype(np.uint16)
ROW_WORDS = 8
"""As many as a byte has bits."""
ROW_BYTES = ROW_WORDS * WORD_TYPE.itemsize
SLICE_WORDS = 2**19
"""A multiple of `ROW_WORDS`. Intermediate results for a slice of this size stay in a processor's caches."""
MOST_FAR_SHARE = 0.4
"""A slice is written as it is if a larger share of its words has moved farther. In float32 half of the words
have, the lower half of each number: a difference would save a third of the bytes, and take 3 s of CPU time a
gigabyte. A fast network sends all bytes three times in these 3 s."""

AS_IT_IS, SHORT = 0, 1
"""The first byte of a slice, of bits or of bytes, which tells how the rest is written."""


class DamagedDifference(ValueError):
    """A difference cannot be applied; all bytes have to be sent."""


def encode(old: np.ndarray, new: np.ndarray) -> bytes | None:
    """Return the difference of the bytes `new` from the bytes `old`; None if it is longer than they are.

    Args:
        old, new: arrays of bytes; they have the same length, a multiple of `ROW_BYTES`, as parts of a
            `WeightFile` have.

    Raises:
        ValueError: they do not.
    """
    if len(old) != len(new):
        raise ValueError(f"{len(new)} bytes have no difference from {len(old)}: give as many")
    pieces: list[np.ndarray] = []
    for old_words, new_words in zip(_slices(old), _slices(new), strict=True):
        pieces += _moves(old_words, new_words) or _kind(AS_IT_IS, new_words)
    # The lengths are checked first: joining parts that are not sent takes three times as long as this check.
    if sum(piece.nbytes for piece in pieces) > len(new):
        return None
    return b"".join(piece.data for piece in pieces)


def apply(target: np.ndarray, difference: bytes) -> None:
    """Turn the old bytes in `target` into the new ones.

    Raises:
        DamagedDifference: `encode` has not made `data`, or has made it for another number of bytes; `target`
            is changed in part.
    """
    read = _Reader(difference)
    for words in _slices(target):
        if read.kind() == SHORT:
            _move(words, read)
        else:
            words[:] = read.take(words.nbytes).view(WORD_TYPE)
    read.end()


def _slices(data: np.ndarray) -> Iterator[np.ndarray]:
    if len(data) % ROW_BYTES:
        raise ValueError(f"{len(data)} bytes have no difference: give a multiple of {ROW_BYTES}")
    words = data.view(WORD_TYPE)
    return (words[start : start + SLICE_WORDS] for start in range(0, len(words), SLICE_WORDS))


def _moves(old: np.ndarray, new: np.ndarray) -> list[np.ndarray] | None:
    """Return how words have moved; None if many have moved by more than one."""
    moves = new - old
    moves += 1  # now 0, 1 and 2 are one lower, the same and one higher
    is_far = moves > 2
    if np.count_nonzero(is_far) > MOST_FAR_SHARE * len(new):
        return None
    # Bytes are compared faster than words. A far word may seem near in its low byte: both its bits are set.
    near = moves.astype(np.uint8)
    far_bits = np.packbits(is_far)
    down_bits, up_bits = np.packbits(near == 0) | far_bits, np.packbits(near == 2) | far_bits
    # Whole rows are taken first, which is quicker than to compute the place of each far word.
    filled, ones = _ones(far_bits)
    distances = moves.reshape(-1, ROW_WORDS).take(filled, axis=0).ravel().take(ones)
    distances -= 1
    # The sign goes to the lowest bit, so that the high byte of a small negative distance is zero, too.
    folded = (distances << 1) ^ -(distances >> 15)
    low, high = folded.astype(np.uint8), (folded >> 8).astype(np.uint8)
    return [
        *_kind(SHORT),
        *_zeros_left_out(down_bits),
        *_zeros_left_out(up_bits),
        low,
        *_zeros_left_out(high),
    ]


def _move(words: np.ndarray, read: _Reader) -> None:
    """Move `words` as `_moves` has found."""
    down_bits, up_bits = (read.with_zeros(len(words) // ROW_WORDS) for _ in range(2))
    far = _places(down_bits & up_bits, len(words))
    folded = read.take(len(far)).astype(WORD_TYPE)
    folded |= read.with_zeros(len(far)).astype(WORD_TYPE) << 8
    near = np.unpackbits(up_bits)
    near -= np.unpackbits(down_bits)
    words += near.view(np.int8).astype(np.int16).view(WORD_TYPE)
    words[far] += (folded >> 1) ^ -(folded & 1)


def _zeros_left_out(data: np.ndarray) -> list[np.ndarray]:
    is_set = data != 0
    if 2 * np.count_nonzero(is_set) > len(data):
        return _kind(AS_IT_IS, data)
    bits = np.packbits(is_set)
    return _kind(SHORT, bits, data.take(_places(bits, len(data))))


def _kind(kind: int, *arrays: np.ndarray) -> list[np.ndarray]:
    return [np.array([kind], np.uint8), *arrays]


def _ones(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which bytes of packed bits are not zero, and where the ones stand among the bits of these."""
    # Bytes of zeros are passed over: this is twice as fast as to search all bits where one in ten is set.
    filled = np.flatnonzero(bits != 0)
    return filled, np.flatnonzero(np.unpackbits(bits.take(filled)).view(bool))


def _places(bits: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the ones among `count` packed bits, in ascending order.

    Raises:
        DamagedDifference: one stands behind them.
    """
    filled, ones = _ones(bits)
    places = filled.take(ones >> 3)
    places <<= 3
    ones &= 7
    places |= ones
    if len(places) and places[-1] >= count:
        raise DamagedDifference
    return places


class _Reader:
    """Reads a difference from its beginning to its end."""

    def __init__(self, difference: bytes) -> None:
        self._data, self._begin = np.frombuffer(difference, np.uint8), 0

    def take(self, count: int) -> np.ndarray:
        begin, self._begin = self._begin, self._begin + count
        if self._begin > len(self._data):
            raise DamagedDifference
        return self._data[begin : self._begin]

    def kind(self) -> int:
        kind = int(self.take(1)[0])
        if kind not in (AS_IT_IS, SHORT):
            raise DamagedDifference
        return kind

    def with_zeros(self, count: int) -> np.ndarray:
        """Return `count` bytes that were written by `_zeros_left_out`."""
        if self.kind() == AS_IT_IS:
            return self.take(count)
        places = _places(self.take(-(-count // 8)), count)
        data = np.zeros(count, np.uint8)
        data[places] = self.take(len(places))
        return data

    def end(self) -> None:
        if self._begin != len(self._data):
            raise DamagedDifference
