"""Passes over the samples that have a gradient, in the place of passes over all.

A sample has no gradient where its mask is empty, or where its advantage is 0 and nothing else is made of it.
Micro-batches stay what they are: every sample keeps its own, and with it its optimizer step and the divisor
of its loss. The live rows of several are computed together, in passes of the size of one. A loss is a sum
over rows, divided by a number that its micro-batch has, so that the gradient is the same to rounding.

Passes follow from counts of live rows. Sharded models need equally many on every rank: a rank asks all others
(`Packing.full`, `Packing.needed`) before it takes passes. While a step is not complete, it takes as many as
the emptiest rank can fill, and in the end as many as the fullest one needs: never more, in all, than the
fullest rank would need by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rlinf_async.core.tensors import Tree, concatenate, rows_of, size_of, slice_samples


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one micro-batch in a pass."""

    micro_batch: int
    """The number of the micro-batch in its optimizer step."""
    rows: torch.Tensor
    """[R] int64, ascending; none of a micro-batch in which no row is live."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass, over the rows of its parts, one part behind the other."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Live rows; where there is none, a rank takes part with a row that counts nothing."""
        return sum(len(part.rows) for part in self.parts)


def passes_over(rows: int, size: int) -> int:
    """The passes of at most `size` that `rows` need; one where there is none, as an optimizer still steps."""
    return max(1, -(-rows // size))


def spread(total: int, parts: int) -> list[int]:
    """`total` in `parts` that differ by one at most."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def row_parts(rows: torch.Tensor, parts: int, *trees: Tree) -> Iterator[Tree]:
    """Some rows of `trees`, one tree behind the other, in `parts` that differ by one at most.

    A part that is left without rows is one row that nobody asked for; such parts are the last ones.

    Args:
        rows: [R] int64, ascending; numbered through all trees.
    """
    for own in rows.split(sorted(spread(len(rows), parts), reverse=True)):
        yield _chosen(own if len(own) else torch.zeros(1, dtype=torch.int64), trees)


def _chosen(rows: torch.Tensor, trees: Sequence[Tree]) -> Tree:
    found, start = [], 0
    for tree in trees:
        stop = start + size_of(tree)
        own = rows[(rows >= start) & (rows < stop)] - start
        if len(own):
            found.append(rows_of(tree, own))
        start = stop
    return found[0] if len(found) == 1 else concatenate(found)


class Packing:
    """Packs the live rows of the micro-batches of one optimizer step, in their order, into passes.

    Every live row is in one pass, and every micro-batch, also one without a live row, is a part of at least
    one. No pass has more than `size` rows. Unless it `mixes`, a pass has rows of one micro-batch alone.
    """

    def __init__(self, *, size: int, mixes: bool = True) -> None:
        if size < 1:
            raise ValueError(f"size={size} must be at least 1")
        self._size = size
        self._mixes = mixes
        self._waiting: deque[Part] = deque()
        self._added = 0

    @property
    def live(self) -> int:
        """Live rows that wait for their pass."""
        return sum(len(part.rows) for part in self._waiting)

    @property
    def full(self) -> int:
        """Passes that can be filled before the step is complete, all but a last one."""
        # Gradients are summed over ranks in the last pass, and what comes until then may have no live row.
        return max(0, self.live - 1) // self._size if self._mixes else max(0, self._live_parts() - 1)

    @property
    def needed(self) -> int:
        """Passes that complete the step."""
        return passes_over(self.live, self._size) if self._mixes else max(1, self._live_parts())

    def add(self, live: torch.Tensor) -> int:
        """Add a micro-batch with these `live` rows, [N] bool; return its number in the step.

        Raises:
            ValueError: it has more rows than a pass may have.
        """
        if len(live) > self._size:
            raise ValueError(f"a micro-batch of {len(live)} rows does not fit into passes of {self._size}")
        self._waiting.append(Part(self._added, live.nonzero().flatten().cpu()))
        self._added += 1
        return self._added - 1

    def take(self, passes: int) -> list[Pass]:
        """Return the next `passes`: full ones, or all that waits spread over them, some of them empty."""
        if not self._mixes:
            return [self._alone() for _ in range(passes)]
        live = self.live
        full = live >= passes * self._size
        sizes = [self._size] * passes if full else spread(live, passes)
        # The largest first: the last ones may be empty, and a micro-batch without live rows needs a pass.
        return [self._next(size) for size in sorted(sizes, reverse=True)]

    def finish(self) -> None:
        """The step is complete.

        Raises:
            RuntimeError: rows are left that no pass has had.
        """
        if self._waiting:
            raise RuntimeError(f"an optimizer step left {self.live} live rows in no pass")
        self._added = 0

    def _live_parts(self) -> int:
        return sum(1 for part in self._waiting if len(part.rows))

    def _alone(self) -> Pass:
        parts = self._without_rows()
        if self._waiting:
            parts.append(self._waiting.popleft())
        return Pass((*parts, *self._without_rows()))

    def _next(self, size: int) -> Pass:
        parts = self._without_rows()
        while size:
            part = self._waiting.popleft()
            if len(part.rows) > size:
                self._waiting.appendleft(Part(part.micro_batch, part.rows[size:]))
                part = Part(part.micro_batch, part.rows[:size])
            parts.append(part)
            size -= len(part.rows)
            parts += self._without_rows()
        return Pass(tuple(parts))

    def _without_rows(self) -> list[Part]:
        parts = []
        while self._waiting and not len(self._waiting[0].rows):
            parts.append(self._waiting.popleft())
        return parts


class LiveSamples:
    """The micro-batches of an optimizer step, and the samples of each pass over their live rows."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._samples: dict[int, Tree] = {}
        self._left: dict[int, int] = {}
        self._spare: Tree | None = None

    @property
    def full(self) -> int:
        return self._packing.full

    @property
    def needed(self) -> int:
        return self._packing.needed

    def add(self, samples: Tree, live: torch.Tensor) -> int:
        """Add a micro-batch, of whose samples, [N, ...], some are `live`; return its number in the step."""
        number = self._packing.add(live)
        if self._spare is None:
            self._spare = slice_samples(samples, 0, 1)
        # Only what a pass will have: micro-batches without live rows are held by nobody.
        if left := int(live.sum()):
            self._samples[number], self._left[number] = samples, left
        return number

    def take(self, passes: int) -> Iterator[tuple[Pass, Tree]]:
        """The next `passes`, each with its samples; an empty one has a sample that is to count nothing."""
        for one in self._packing.take(passes):
            yield one, self._of(one)

    def finish(self) -> None:
        """The step is complete; see `Packing.finish`."""
        self._packing.finish()
        self._spare = None

    def _of(self, one: Pass) -> Tree:
        trees = [self._rows(part) for part in one.parts if len(part.rows)]
        if not trees:
            assert self._spare is not None, "a step has samples before it has passes"
            return self._spare
        return trees[0] if len(trees) == 1 else concatenate(trees)

    def _rows(self, part: Part) -> Tree:
        samples = self._samples[part.micro_batch]
        self._left[part.micro_batch] -= len(part.rows)
        if not self._left[part.micro_batch]:
            del self._samples[part.micro_batch], self._left[part.micro_batch]
        if len(part.rows) == size_of(samples):
            return samples
        return rows_of(samples, part.rows)
