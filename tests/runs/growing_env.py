"""Emulated environments that keep memory, and a file, at each decision."""

from __future__ import annotations

import os
import resource
from typing import Any

import numpy as np
import psutil

from rlinf_async.lab.emulated.env import EmulatedEnv

KEPT_BYTES = 500_000
ROOM_BYTES, ROOM_FILES = 4 << 30, 4000
"""What the process of the environments may take beyond what it has at their start."""


class GrowingEnv(EmulatedEnv):
    """Each decision keeps `KEPT_BYTES` and an open file, in a process of little room."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._kept: list[Any] = []
        own = psutil.Process()
        _limit(resource.RLIMIT_AS, own.memory_info().vms + ROOM_BYTES)
        _limit(resource.RLIMIT_NOFILE, own.num_fds() + ROOM_FILES)

    def chunk_step(self, chunk_actions: object) -> Any:
        self._kept += [np.ones(KEPT_BYTES, dtype=np.uint8), os.open("/dev/null", os.O_RDONLY)]
        return super().chunk_step(chunk_actions)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
