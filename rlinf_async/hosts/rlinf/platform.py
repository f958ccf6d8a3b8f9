"""A CPU platform for RLinf, in processes without an accelerator.

RLinf (0.3 and main) sets `Worker.torch_platform` to None there, on which several of its parts fail. This
platform does nothing in the calls that only accelerators need.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from rlinf_async.hosts.cpu_device import CpuDevice


class InertStream:
    """A stream on a CPU, where work is complete when its call returns."""

    def synchronize(self) -> None:
        """Do nothing: no work is pending on a CPU."""

    def wait_stream(self, stream: object) -> None:
        """Do nothing: no work is pending on a CPU."""


class CpuPlatform(CpuDevice):
    """The functions of `torch.cuda` that RLinf calls, for a CPU."""

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
    """A data descriptor that provides a value for an attribute that RLinf sets to None.

    RLinf assigns the attribute on the instance before it loads plugins; only a data descriptor of the class
    takes precedence over that.
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
    # For every worker again: RLinf's `_env_setup_before_init` has just set None on the class.
    worker_class.torch_platform = _Default(CpuPlatform())
    worker_class.torch_device_type = _Default("cpu")
    return True
