"""Versions of weights in memory that other processes map: one process writes them, many read them.

A lock of the kernel (`flock`) keeps a version whole: the writer holds an exclusive lock, readers hold shared
ones. The kernel releases a lock when the process that holds it ends, however it ends, and frees the memory
when no process maps it any more.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.ray_runtime.publication.weight_place import WeightPlace
from rlinf_async.wire.connection import Address
from rlinf_async.wire.memory import ALIGNMENT_BYTES, machine, open_memory, starts_of, try_lock

UNFINISHED_VERSION = -1
"""Stands in place of the version number while a version is being written."""
NUMBER_BYTES = 8
FOR_ALL_DEVICES = 1
"""cudaHostRegisterPortable."""

Tensors = dict[str, torch.Tensor]
Kinds = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shapes and types of tensors, by name."""


class WeightsGone(PeerError):
    """A newer version is using the memory of this one, or has used it."""


class WeightFile:
    """Memory for one version of weights at a time."""

    def __init__(self, size: int, *, device: torch.device | None = None) -> None:
        """Make memory for `size` bytes; its pages are locked for copies from a CUDA `device`."""
        self._file = os.memfd_create("rlinf-async-weights", os.MFD_CLOEXEC)
        # The version has a block of its own, so that the body begins at a multiple of the alignment.
        os.ftruncate(self._file, ALIGNMENT_BYTES + size)
        self._memory = torch.frombuffer(mmap.mmap(self._file, 0), dtype=torch.uint8)
        self._locked_by = device if device is not None and _lock_pages(self._memory, device) else None
        self.body = self._memory[ALIGNMENT_BYTES:]
        """All bytes but the version number."""

    def begin(self) -> bool:
        """Lock the memory for writing; return False if a reader holds it."""
        if not try_lock(self._file, fcntl.LOCK_EX):
            return False
        # Under the lock: should this process die while it writes, no reader takes the bytes for a version.
        self._name(UNFINISHED_VERSION)
        return True

    def finish(self, version: int) -> None:
        """Name the content `version`, and let readers in."""
        # Before the lock is released: a reader that gets the lock finds a whole and named version.
        self._name(version)
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def place(self, *, changes: bool, version: int, address: Address) -> WeightPlace:
        return WeightPlace(
            machine=machine(),
            process=os.getpid(),
            number=self._file,
            inode=os.fstat(self._file).st_ino,
            size=len(self.body),
            changes=changes,
            version=version,
            address=address,
        )

    def close(self) -> None:
        """Release the memory; the kernel frees it when the last reader has released it, too."""
        if self._locked_by is not None:
            # Before the mapping ends: CUDA knows the pages by their address.
            with torch.cuda.device(self._locked_by):
                torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())
        del self._memory, self.body
        os.close(self._file)

    def _name(self, version: int) -> None:
        _number(self._memory).fill_(version)


class WeightVersions:
    """The newest version of some weights in this process, and the memory for the next one.

    The newest version stays unchanged while the next one is written. Readers of the version before it keep
    their memory.
    """

    def __init__(self, *, changes: bool) -> None:
        self._changes = changes
        self._newest: WeightFile | None = None
        self._other: WeightFile | None = None
        self._version = UNFINISHED_VERSION
        self._is_begun = False

    def begin(self, size: int, *, device: torch.device | None = None) -> torch.Tensor:
        """Return memory of `size` bytes to write the next version to; its tensors are on a `device`."""
        other = self._other
        # Readers of the old file keep it: one that is closed here lasts as long as it is mapped.
        if other is None or len(other.body) != size or not other.begin():
            if other is not None:
                other.close()
            self._other = other = WeightFile(size, device=device)
            other.begin()
        self._is_begun = True
        return other.body

    def publish(self, version: int) -> None:
        """Publish the memory that `begin` returned, if any, as `version`; all of it must be written."""
        if self._is_begun and self._other is not None:
            self._other.finish(version)
            # By turns: the version before this one is overwritten next, unless a reader holds it.
            self._newest, self._other = self._other, self._newest
            self._version, self._is_begun = version, False

    @property
    def newest(self) -> torch.Tensor | None:
        """The memory of the newest version."""
        return None if self._newest is None else self._newest.body

    def place(self, address: Address) -> WeightPlace | None:
        """Return the place of the newest version; None before the first."""
        if self._newest is None:
            return None
        return self._newest.place(changes=self._changes, version=self._version, address=address)

    def clear(self) -> None:
        """Release all memory."""
        for file in (self._newest, self._other):
            if file is not None:
                file.close()
        self._newest = self._other = None
        self._is_begun = False


class OpenedWeights(AbstractContextManager[Tensors]):
    """A version in the memory of another process; it does not change until the block ends."""

    def __init__(self, place: WeightPlace) -> None:
        """
        Raises:
            WeightsGone: a newer version is in its memory, or is being written there.
            PeerError: this process cannot map the memory.
        """
        self._file = open_memory(place.machine, place.process, place.number, place.inode)
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # ACCESS_COPY: writing to a tensor changes a private copy, not the other process's memory.
            mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
            memory = torch.frombuffer(mapping, dtype=torch.uint8)
        except BlockingIOError:
            self._file.close()
            raise WeightsGone(f"version {place.version} of the weights is being overwritten") from None
        # Under the lock: before it, the version could change after it was read.
        if (version := int(_number(memory))) != place.version:
            self.close()
            raise WeightsGone(f"version {version} of the weights is where version {place.version} was")
        self.body = memory[ALIGNMENT_BYTES:]

    def __enter__(self) -> Tensors:
        return tensors_in(self.body)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock, so that the other process may overwrite the memory."""
        # Closing the file alone would not release it: the mapping has a descriptor of the same open file.
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


def bytes_of(kinds: Kinds) -> tuple[bytes, int]:
    """Return the head of a version of such tensors, which lists their offsets, and the size of the body."""
    lengths = [shape.numel() * dtype.itemsize for shape, dtype in kinds.values()]
    *starts, size = starts_of(lengths)
    entries = [
        [name, list(shape), str(dtype).removeprefix("torch."), start]
        for (name, (shape, dtype)), start in zip(kinds.items(), starts, strict=True)
    ]
    head = json.dumps(entries).encode()
    return head, _begin_of_data(head) + size


def write_head(body: torch.Tensor, head: bytes) -> Tensors:
    """Write `head`, and return views of `body` for the tensors that it names."""
    _number(body).fill_(len(head))
    # A bytearray, as torch warns of memory that it may not write.
    body[NUMBER_BYTES : NUMBER_BYTES + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    return tensors_in(body)


def tensors_in(body: torch.Tensor) -> Tensors:
    """Return the tensors of a version, as views of `body`."""
    head = body[NUMBER_BYTES : NUMBER_BYTES + int(_number(body))].numpy().tobytes()
    data = body[_begin_of_data(head) :]
    tensors = {}
    for name, shape, kind, start in json.loads(head):
        dtype: torch.dtype = getattr(torch, kind)
        tensors[name] = data[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
    return tensors


def _begin_of_data(head: bytes) -> int:
    return starts_of([NUMBER_BYTES + len(head)])[-1]


def _number(memory: torch.Tensor) -> torch.Tensor:
    return memory[:NUMBER_BYTES].view(torch.int64)


def _lock_pages(memory: torch.Tensor, device: torch.device) -> bool:
    """Lock the pages of `memory`, so that CUDA copies to it without the CPU; False where CUDA refuses."""
    with torch.cuda.device(device):
        status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, FOR_ALL_DEVICES)
    return int(status) == 0
