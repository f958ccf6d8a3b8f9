"""A platform for veRL without an accelerator, which `VERL_PLATFORM=cpu` chooses.

It is never chosen by itself: a run that does not ask for it finds the platforms that it would have found.
Only `plugin` imports this module: veRL, imported from here for the first time, would not know
the platform yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from rlinf_async.hosts.cpu_device import CpuDevice


class CpuModule(CpuDevice, ModuleType):
    """`torch.cpu`, and what else veRL asks `torch.cuda` for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Free and total bytes of the accelerator."""
        return 0, 0


class CpuPlatform(CpuDevice, PlatformBase):
    """Training on CPU cores; ranks talk through gloo."""

    _module = CpuModule("rlinf_async_cpu_device")

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return self._module

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Asked when veRL looks for a platform itself, which must not find this one."""
        return False

    def current_device(self) -> Any:
        """The device that tensors are moved to: not a number, which would be a CUDA device."""
        return "cpu"

    def set_allocator_settings(self, settings: str) -> None:
        """The allocator has none."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        with nullcontext():
            yield

    def profiler_start(self) -> None:
        """Do nothing: there is no profiler of the device."""

    def profiler_stop(self) -> None:
        """Do nothing: there is no profiler of the device."""

    def ray_resource_name(self) -> str:
        return "CPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": 0}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


if PlatformRegistry.get("cpu") is None:
    PlatformRegistry.register(platform="cpu")(CpuPlatform)
