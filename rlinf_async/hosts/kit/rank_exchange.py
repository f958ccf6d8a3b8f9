"""Evens out samples over learner ranks within an optimizer step: which rows move, and how they are sent, by
collective calls of torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Protocol

import torch
import torch.distributed as dist

from rlinf_async.core.packing import passes_over
from rlinf_async.core.tensors import Tree, map_tensors


@dataclass(frozen=True, slots=True)
class Move:
    """Live rows of an optimizer step that one rank computes for another."""

    giver: int
    taker: int
    rows: int


SMALLEST_GAIN = 0.05
"""The share of the fullest rank's rows that it has to be rid of, for rows to move without saving a pass."""


def evening(live: Sequence[int], *, size: int) -> list[Move]:
    """Return the moves after which ranks with these numbers of `live` rows have equally many, up to one.

    As few rows move as can; none do where no pass of `size` rows is saved and the rank with the most would
    be rid of few.
    """
    least, more = divmod(sum(live), len(live))
    fullest, even = max(live), least + bool(more)
    saves_passes = passes_over(even, size) < passes_over(fullest, size)
    if not saves_passes and fullest - even < SMALLEST_GAIN * fullest:
        return []
    fullest_first = sorted(range(len(live)), key=lambda rank: -live[rank])
    surplus = [live[rank] - least - (place < more) for place, rank in enumerate(fullest_first)]
    takers = deque((rank, -over) for rank, over in zip(fullest_first, surplus, strict=True) if over < 0)
    moves = []
    for giver, over in zip(fullest_first, surplus, strict=True):
        while over > 0:
            taker, room = takers.popleft()
            moves.append(Move(giver, taker, rows := min(over, room)))
            over -= rows
            if rows < room:
                takers.appendleft((taker, room - rows))
    return moves


class Exchange(Protocol):
    """Sends numbers and trees of tensors between learner ranks, which make the same calls in one order."""

    @property
    def rank(self) -> int:
        """The rank of this process."""

    def counts(self, own: int) -> list[int]:
        """Return the numbers `own` of all ranks, by rank."""

    def swap(self, sent: Mapping[int, Tree], senders: Collection[int]) -> dict[int, Tree]:
        """Send a tree to each rank of `sent`; return the tree of each of `senders`."""


class RankExchange:
    """An `Exchange` of the default process group.

    Trees travel as bytes, so that receivers need not know their shapes; reading them runs no pickled code.
    """

    def __init__(self, device: torch.device | str) -> None:
        """`device`: the device that a tensor must be on for the process group to send it."""
        self._device = device

    @property
    def rank(self) -> int:
        return dist.get_rank()

    def counts(self, own: int) -> list[int]:
        found = [self._numbers(1) for _ in range(dist.get_world_size())]
        dist.all_gather(found, torch.tensor([own], device=self._device))
        return [int(each) for each in found]

    def swap(self, sent: Mapping[int, Tree], senders: Collection[int]) -> dict[int, Tree]:
        outgoing = {rank: bytes_of(tree).to(self._device) for rank, tree in sent.items()}
        lengths = {rank: self._numbers(1) for rank in senders}
        self._travel(
            {rank: torch.tensor([len(data)], device=self._device) for rank, data in outgoing.items()}, lengths
        )
        incoming = {
            rank: torch.empty(int(length), dtype=torch.uint8, device=self._device)
            for rank, length in lengths.items()
        }
        self._travel(outgoing, incoming)
        return {rank: tree_of(data) for rank, data in incoming.items()}

    def _numbers(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int64, device=self._device)

    def _travel(self, outgoing: Mapping[int, torch.Tensor], incoming: Mapping[int, torch.Tensor]) -> None:
        operations = [
            *(dist.P2POp(dist.isend, data, rank) for rank, data in sorted(outgoing.items())),
            *(dist.P2POp(dist.irecv, data, rank) for rank, data in sorted(incoming.items())),
        ]
        if operations:
            for request in dist.batch_isend_irecv(operations):
                request.wait()


def bytes_of(tree: Tree) -> torch.Tensor:
    """Return a tree as one tensor, [bytes] uint8."""
    buffer = BytesIO()
    # Copies: for a view, `torch.save` would write the whole batch behind it.
    torch.save(map_tensors(torch.clone, tree), buffer)
    return torch.frombuffer(bytearray(buffer.getbuffer()), dtype=torch.uint8)


def tree_of(data: torch.Tensor) -> Tree:
    """Return the tree in a tensor of `bytes_of`, on the CPU."""
    return torch.load(BytesIO(data.cpu().numpy().tobytes()), map_location="cpu", weights_only=True)
