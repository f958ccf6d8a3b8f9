"""The calls of `torch.cuda` that `torch.cpu` lacks, for processes without an accelerator."""

from __future__ import annotations

import torch


class CpuDevice:
    """Functions of `torch.cuda` for a CPU: one device, and no device memory."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def set_device(self, device: object) -> None:
        """Do nothing: there is one device."""

    def synchronize(self, device: object = None) -> None:
        """Do nothing: work on a CPU is complete when its call returns."""

    def empty_cache(self) -> None:
        """Do nothing: no memory is cached."""

    def ipc_collect(self) -> None:
        """Do nothing: there are no device handles to collect."""

    def reset_peak_memory_stats(self, device: object = None) -> None:
        """Do nothing: there is no device memory."""

    def memory_allocated(self, device: object = None) -> int:
        """Return 0 bytes: there is no device memory."""
        return 0

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        """Return the state of torch's generator."""
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None:
        """Set the state of torch's generator."""
        torch.set_rng_state(state)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch's generator."""
        torch.manual_seed(seed)

    manual_seed = manual_seed_all
