"""Copies of tensors in CPU memory that are made again and again, in memory that is allocated once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

BLOCK_BYTES = 2**28
"""Tensors share blocks of up to this size: page-locked memory comes in powers of two, a block for a tensor
would take up to twice as much, and thousands of them would take seconds to lock."""
ALIGNMENT_BYTES = 16


def host_tensors(
    like: Iterable[tuple[torch.Size, torch.dtype]], *, pinned: bool = False
) -> list[torch.Tensor]:
    """Tensors of these shapes and types on the CPU, their values undefined; page-locked if `pinned`."""
    kinds = list(like)
    tensors: list[torch.Tensor] = []
    for start, stop, size in _blocks([_bytes(shape, dtype) for shape, dtype in kinds]):
        block, place = torch.empty(size, dtype=torch.uint8, pin_memory=pinned), 0
        for shape, dtype in kinds[start:stop]:
            # The exact size; `place` goes on by the rounded one, as `view` wants a start that its type
            # divides.
            used = shape.numel() * dtype.itemsize
            tensors.append(block[place : place + used].view(dtype).view(shape))
            place += _bytes(shape, dtype)
    return tensors


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Write each of `sources` into the target at its place, types converted; it is done on return.

    One side is page-locked CPU memory wherever the other is on a CUDA device: such copies follow each other
    without the CPU waiting in between.
    """
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            # Targets may be parameters, to which torch writes in place only without gradients.
            target.copy_(source, non_blocking=True)
    # Before the return: a caller may read the CPU's memory, or write over it, at once.
    wait_for(*targets, *sources)


def exchange_all(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> None:
    """Swap the values of each of `a` with those of the tensor at its place, on the terms of `copy_all`.

    One tensor at a time is in three places; nothing else is allocated.
    """
    with torch.no_grad():
        for one, other in zip(a, b, strict=True):
            # On the device of `one`: the copies below are asynchronous, and this temporary is freed in the
            # order of its stream.
            copy = one.clone()
            one.copy_(other, non_blocking=True)
            other.copy_(copy, non_blocking=True)
    wait_for(*a, *b)


def wait_for(*tensors: torch.Tensor) -> None:
    """Wait until what was asked of the devices of `tensors`, in their current streams, is done."""
    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        torch.get_device_module(device).current_stream(device).synchronize()


def _bytes(shape: torch.Size, dtype: torch.dtype) -> int:
    # Rounded up: `-(-a // b)` is the quotient's ceiling.
    return -(-shape.numel() * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _blocks(sizes: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """(start, stop, bytes) of runs of tensors that share a block; a larger tensor has one of its own."""
    start, fill = 0, 0
    for index, size in enumerate(sizes):
        # `fill` first, or a tensor that is larger than a block would leave an empty one before it.
        if fill and fill + size > BLOCK_BYTES:
            yield start, index, fill
            start, fill = index, 0
        fill += size
    if start < len(sizes):
        yield start, len(sizes), fill
