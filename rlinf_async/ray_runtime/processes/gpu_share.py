"""A process that keeps to its share of a GPU, which it shares with other processes of its run."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import psutil
import torch

from rlinf_async.core.gpu_shares import GpuUse, SharedGpu
from rlinf_async.ray_runtime.processes.run_process import RunProcess


class GpuMemory(Protocol):
    """The memory of the GPU of a process."""

    stands_in: bool
    """True if there is no GPU, so that a limit has no effect."""

    @property
    def total(self) -> int:
        """The bytes of the GPU."""

    def limit(self, share: int) -> None:
        """Make torch fail when it would hold more than `share` bytes in this process."""

    def use(self) -> GpuUse:
        """Return the present use of the GPU."""


class CudaMemory:
    """The memory of a CUDA device, limited by torch's caching allocator."""

    stands_in = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def limit(self, share: int) -> None:
        torch.cuda.set_per_process_memory_fraction(min(1.0, share / self.total), self._device)

    def use(self) -> GpuUse:
        free, total = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        return GpuUse(total=total, used=total - free, reserved=reserved)


class StandInMemory:
    """The memory of this machine in the place of a GPU's, so that a run without a GPU takes the same way.

    Only `take` counts, and fails as torch does beyond a limit.
    """

    stands_in = True

    def __init__(self) -> None:
        self.total = int(psutil.virtual_memory().total)
        self.share = self.total
        self._taken = 0

    def limit(self, share: int) -> None:
        self.share = share

    def use(self) -> GpuUse:
        return GpuUse(total=self.total, used=self._taken, reserved=self._taken)

    def take(self, count: int) -> None:
        """Count `count` more bytes as held.

        Raises:
            torch.OutOfMemoryError: the process would hold more than its share.
        """
        if self._taken + count > self.share:
            raise torch.OutOfMemoryError(
                f"out of memory on the stand-in for a GPU. Tried to allocate {_gib(count)}. It has a total "
                f"capacity of {_gib(self.total)} of which {_gib(self.total - self._taken)} is free. "
                f"{_gib(self.share)} allowed; use less"
            )
        self._taken += count


def _gib(count: int) -> str:
    """Return a number of bytes as torch writes it: `1.50 GiB`."""
    return f"{count / 2**30:.2f} GiB"


@dataclass(frozen=True, kw_only=True)
class KeptShare:
    """The share of a GPU that a process keeps to."""

    bytes: int
    """The most that torch's allocator may hold in this process."""
    total: int
    """The bytes of the GPU."""
    others: int
    """The bytes that are left to processes without a limit."""
    stands_in: bool


class KeepsToShare(RunProcess):
    """A process with a model, which can be held to its share of a GPU."""

    gpu_memory: GpuMemory | None = None
    """The memory of its GPU; None without a limit."""

    def gpu_device(self) -> torch.device | None:
        """Return the CUDA device of the process; None without one. A host gives it."""
        return None

    async def keep_to_share(self, gpu: SharedGpu, group: str) -> KeptShare | None:
        """Limit torch to the share of a process of `group`; called before the model is built.

        Returns:
            The share; None if the estimates do not fit the GPU, so that no limit is set.
        """
        device = self.gpu_device()
        memory: GpuMemory = StandInMemory() if device is None else CudaMemory(device)
        total = memory.total
        if (shares := gpu.divide(total)) is None:
            return None
        share = shares.learner if group == "learner" else shares.inference
        memory.limit(share)
        self.gpu_memory = memory
        return KeptShare(bytes=share, total=total, others=shares.others, stands_in=memory.stands_in)

    async def doing(self) -> dict[str, Any]:
        answer = await super().doing()
        if self.gpu_memory is None:
            return answer
        # In a thread: the call may wait for CUDA's driver.
        use = await asyncio.to_thread(self.gpu_memory.use)
        # No limit is reported, so that no forecast is made: torch gives cached memory back before it fails.
        holds = {**answer["holds"], "GPU memory": {"value": use.reserved}}
        return {**answer, "holds": holds, "gpu": asdict(use)}
