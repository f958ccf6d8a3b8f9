"""Repeated copies of tensors to CPU memory that is allocated once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

BLOCK_BYTES = 2**28
"""Tensors share blocks of up to this size: page-locked memory comes in powers of two, so that a block per
tensor would take up to twice the memory, and locking thousands of blocks would take seconds."""
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
            # The exact size; `place` advances by the rounded one, as `view` needs a start that is a multiple
            # of the size of its type.
            used = shape.numel() * dtype.itemsize
            tensors.append(block[place : place + used].view(dtype).view(shape))
            place += _bytes(shape, dtype)
    return tensors


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each of `sources` into the target of the same index, converting types; complete on return.

    Copies between a CUDA device and page-locked CPU memory follow each other without the CPU waiting in
    between; memory that is not page-locked is slower.
    """
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            # Under `no_grad`, as targets may be parameters.
            target.copy_(source, non_blocking=True)
    # Wait before returning: the caller may read or overwrite the CPU memory at once.
    wait_for(*targets, *sources)


def exchange_all(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> None:
    """Swap the values of each of `a` with those of the tensor of the same index in `b`; see `copy_all`.

    One temporary copy of one tensor exists at a time.
    """
    with torch.no_grad():
        for one, other in zip(a, b, strict=True):
            # On the device of `one`: the copies below are asynchronous, and the temporary is freed in the
            # order of its stream.
            copy = one.clone()
            one.copy_(other, non_blocking=True)
            other.copy_(copy, non_blocking=True)
    wait_for(*a, *b)


def wait_for(*tensors: torch.Tensor) -> None:
    """Wait for the current streams of the devices of `tensors`."""
    for device in {tensor.device for tensor in tensors if tensor.device.type != "cpu"}:
        torch.get_device_module(device).current_stream(device).synchronize()


def _bytes(shape: torch.Size, dtype: torch.dtype) -> int:
    # Rounded up: `-(-a // b)` is the quotient's ceiling.
    return -(-shape.numel() * dtype.itemsize // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _blocks(sizes: Sequence[int]) -> Iterable[tuple[int, int, int]]:
    """(start, stop, bytes) of the tensors that share a block; a tensor larger than a block has its own."""
    start, fill = 0, 0
    for index, size in enumerate(sizes):
        # Without the test of `fill`, a first tensor that is larger than a block would yield an empty block.
        if fill and fill + size > BLOCK_BYTES:
            yield start, index, fill
            start, fill = index, 0
        fill += size
    if start < len(sizes):
        yield start, len(sizes), fill
