"""A CPU platform for veRL, chosen by `VERL_PLATFORM=cpu`.

It is never chosen automatically, so other runs find the same platforms as without it. Only `plugin` may
import this module: if this module's import were the first of veRL, veRL would not know the platform yet.
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
    """`torch.cpu`, with the further functions of `torch.cuda` that veRL calls."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        """Return the free and total bytes of device memory: none."""
        return 0, 0


class CpuPlatform(CpuDevice, PlatformBase):
    """Training on CPU cores, with gloo between ranks."""

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
        """Return False, so that veRL's automatic search does not choose this platform."""
        return False

    def current_device(self) -> Any:
        """Return the device for tensors; not a number, which would mean a CUDA device."""
        return "cpu"

    def set_allocator_settings(self, settings: str) -> None:
        """Do nothing: the CPU's allocator has no settings."""

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
