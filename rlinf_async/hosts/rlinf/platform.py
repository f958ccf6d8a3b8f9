"""CPU as a platform of RLinf, for processes that have no accelerator.

RLinf (0.3 and main) sets `Worker.torch_platform` to None there, and several of its parts then fail. The
stand-in answers with `torch.cpu`, and with no-ops for what only accelerators have.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from rlinf_async.hosts.cpu_device import CpuDevice


class InertStream:
    """A stream on a device that has none: everything is already done."""

    def synchronize(self) -> None:
        """Do nothing: no work is pending on a CPU."""

    def wait_stream(self, stream: object) -> None:
        """Do nothing: no work is pending on a CPU."""


class CpuPlatform(CpuDevice):
    """`torch.cuda`'s names with the meaning that they have on a CPU."""

    Stream = InertStream
    Event = InertStream

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def is_initialized(self) -> bool:
        return True

    def current_stream(self, device: object = None) -> InertStream:
        return InertStream()

    def stream(self, stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _Default:
    """A data descriptor that answers for an attribute that RLinf has set to None.

    RLinf assigns the attribute on the instance before it loads plugins; only a data descriptor of the
    class takes precedence over that.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._value

    def __set__(self, instance: object, value: object) -> None:
        if value is not None:
            self._value = value


def provide_cpu_platform(worker_class: Any) -> bool:
    """Give `worker_class` (RLinf's `Worker`) a CPU platform if this process has no accelerator."""
    if worker_class.torch_platform is not None:
        return False
    # For every worker anew: RLinf's `_env_setup_before_init` has just put None on the class.
    worker_class.torch_platform = _Default(CpuPlatform())
    worker_class.torch_device_type = _Default("cpu")
    return True
