"""Forward and backward passes over live rows: the samples that have a gradient.

A sample has no gradient if its mask is empty, or if its advantage is 0 and no other term of the loss uses it.
Every sample keeps its micro-batch, and with it its optimizer step and the divisor of its loss. The live rows
of several micro-batches are computed together, in passes of the size of one micro-batch. A loss is a sum over
rows, divided by a number that depends on the micro-batch alone, so that the gradient is the same up to
rounding.

Passes follow from counts of live rows. Sharded models need equally many passes on every rank: the ranks
exchange `Packing.full` and `Packing.needed` before they take passes. While a step is not complete, each rank
takes as many passes as the rank with the fewest live rows can fill, and at its end as many as the rank with
the most needs, at least one: gradients are summed over ranks in the last pass. In all, no rank makes more
passes than the rank with the most live rows would need alone. One empty pass is added if every live row has
been in a pass before the last micro-batch, and that micro-batch has no live row.

A gradient is a mean over ranks, so that any rank can compute a row of an optimizer step. At the end of a step
the ranks may even out their live rows (`hosts.kit.rank_exchange`): a rank gives rows away (`give`), and the
rank that takes them adds them as a micro-batch of its own.
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
    """[R] int64, ascending; empty if no row of the micro-batch is live."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass, over the rows of its parts, one part behind the other."""

    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Live rows of the pass. If there are none, the rank computes a row whose loss counts 0."""
        return sum(len(part.rows) for part in self.parts)


def passes_over(rows: int, size: int) -> int:
    """The passes of at most `size` that `rows` need; at least 1, as an optimizer also steps without rows."""
    return max(1, -(-rows // size))


def spread(total: int, parts: int) -> list[int]:
    """Split `total` into `parts` numbers that differ by one at most."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def row_parts(rows: torch.Tensor, parts: int, *trees: Tree) -> Iterator[Tree]:
    """Yield the chosen `rows` of `trees` in `parts` whose sizes differ by one at most.

    The last parts may have no rows: each of these is row 0, as a placeholder.

    Args:
        rows: [R] int64, ascending; numbered through all trees, one tree after the other.
    """
    for own in rows.split(sorted(spread(len(rows), parts), reverse=True)):
        yield _chosen(own if len(own) else torch.zeros(1, dtype=torch.int64), trees)


def _chosen(rows: torch.Tensor, trees: Sequence[Tree]) -> Tree:
    chosen, start = [], 0
    for tree in trees:
        stop = start + size_of(tree)
        own = rows[(rows >= start) & (rows < stop)] - start
        if len(own):
            chosen.append(rows_of(tree, own))
        start = stop
    return chosen[0] if len(chosen) == 1 else concatenate(chosen)


class Packing:
    """Packs the live rows of the micro-batches of one optimizer step, in their order, into passes.

    Every live row that is not given away is in exactly one pass. Every micro-batch, even one without live
    rows, is a part of at least one pass, unless all of its rows are given away. No pass has more than `size`
    rows. With `mixes=False` a pass has rows of one micro-batch only.
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
        """Passes that can be filled before the step is complete."""
        # Without mixing, RLinf adds an entropy bonus to each pass, which an empty last pass must not have: so
        # a pass is kept for the end.
        return self.live // self._size if self._mixes else max(0, self._live_parts() - 1)

    @property
    def needed(self) -> int:
        """Passes that complete the step."""
        return passes_over(self.live, self._size) if self._mixes else max(1, self._live_parts())

    def add(self, live: torch.Tensor) -> int:
        """Add a micro-batch with these `live` rows, [N] bool; return its number in the step.

        Raises:
            ValueError: the micro-batch has more rows than a pass may have.
        """
        if len(live) > self._size:
            raise ValueError(f"a micro-batch of {len(live)} rows does not fit into passes of {self._size}")
        self._waiting.append(Part(self._added, live.nonzero().flatten().cpu()))
        self._added += 1
        return self._added - 1

    def give(self, rows: int) -> list[Part]:
        """Return the last `rows` live rows, a part for each micro-batch; they are in no later pass."""
        given, without_rows = [], []
        while rows:
            part = self._waiting.pop()
            if not len(part.rows):
                without_rows.append(part)
                continue
            stay = max(0, len(part.rows) - rows)
            if stay:
                self._waiting.append(Part(part.micro_batch, part.rows[:stay]))
            given.append(Part(part.micro_batch, part.rows[stay:]))
            rows -= len(part.rows) - stay
        self._waiting += without_rows
        return given

    def take(self, passes: int) -> list[Pass]:
        """Return the next `passes`: all full, or with all waiting rows spread over them, so that some may be
        empty."""
        if not self._mixes:
            return [self._alone() for _ in range(passes)]
        live = self.live
        full = live >= passes * self._size
        sizes = [self._size] * passes if full else spread(live, passes)
        # The largest first, so that empty passes come last; a micro-batch without live rows joins some pass.
        return [self._next(size) for size in sorted(sizes, reverse=True)]

    def finish(self) -> None:
        """The step is complete.

        Raises:
            RuntimeError: some rows were in no pass.
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
    """Holds the micro-batches of an optimizer step, and gives each pass the samples of its live rows."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._samples: dict[int, Tree] = {}
        self._rows_left: dict[int, int] = {}
        self._spare: Tree | None = None

    @property
    def full(self) -> int:
        return self._packing.full

    @property
    def needed(self) -> int:
        return self._packing.needed

    @property
    def live(self) -> int:
        return self._packing.live

    def give(self, rows: int) -> list[tuple[Part, Tree]]:
        """Return the last `rows` live rows with their samples; see `Packing.give`."""
        return [(part, self._rows(part)) for part in self._packing.give(rows)]

    def add(self, samples: Tree, live: torch.Tensor) -> int:
        """Add a micro-batch of `samples`, [N, ...], with its `live` rows, [N] bool; return its number in the
        step."""
        number = self._packing.add(live)
        if self._spare is None:
            self._spare = slice_samples(samples, 0, 1)
        # Micro-batches without live rows are not kept: no pass needs their samples.
        if live_rows := int(live.sum()):
            self._samples[number], self._rows_left[number] = samples, live_rows
        return number

    def take(self, passes: int) -> Iterator[tuple[Pass, Tree]]:
        """Yield the next `passes` with their samples; an empty pass has one sample, whose loss counts 0."""
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
        self._rows_left[part.micro_batch] -= len(part.rows)
        if not self._rows_left[part.micro_batch]:
            del self._samples[part.micro_batch], self._rows_left[part.micro_batch]
        if len(part.rows) == size_of(samples):
            return samples
        return rows_of(samples, part.rows)
