"""Sends samples between learner ranks within an optimizer step, by collective calls of torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from io import BytesIO
from typing import Protocol

import torch
import torch.distributed as dist

from rlinf_async.core.tensors import Tree, map_tensors


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
