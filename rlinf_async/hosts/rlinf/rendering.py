"""On which GPU the simulators of an env worker render."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

RLINF_VARIABLE = "MUJOCO_EGL_DEVICE_ID"
"""RLinf's variable: the first GPU of an env worker, where it has one."""
BY_STAGE = ("metaworld", "calvin")
"""RLinf's environments whose simulators render on the EGL device that has the number of their stage."""


def rendering_on_own_gpu(env_cls: type, *, env_type: str, rank: int) -> type:
    """`env_cls`, whose simulators render on the GPU of their env worker, whatever the number of its stages.

    RLinf's Meta-World and CALVIN take their `seed_offset`, which counts the stages of all env workers, as
    the number of an EGL device. With one stage in a worker that is the worker's rank, and there is a GPU of
    that number where each GPU has a worker. With several it is beyond the last GPU, and MuJoCo refuses it.

    Args:
        env_cls: a class of RLinf, with `get_env_fns` and `seed_offset`; any other comes back as it is.
        env_type: as `env.train.env_type`.
        rank: of the env worker: the device where RLinf gives none, as with one stage in a worker.
    """
    if env_type not in BY_STAGE or not hasattr(env_cls, "get_env_fns"):
        return env_cls
    device = int(os.environ.get(RLINF_VARIABLE, rank))

    def get_env_fns(self: Any) -> list[Callable[[], Any]]:
        return [partial(_start, self, device, start) for start in env_cls.get_env_fns(self)]

    return type(env_cls.__name__, (env_cls,), {"get_env_fns": get_env_fns})


def _start(env: Any, device: int, start: Callable[[], Any]) -> Any:
    """Start a simulator of `env`, in a process of its own, in which `env` is a copy."""
    stage, env.seed_offset = env.seed_offset, device
    try:
        return start()
    finally:
        env.seed_offset = stage
