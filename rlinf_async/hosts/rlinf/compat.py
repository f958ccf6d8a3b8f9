"""Differences in behaviour between the supported versions of RLinf; for differences in names see
`borrowed`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.known_config import KnownConfig, reading

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.trajectory import EnvStep


RLINF_VARIABLE = "MUJOCO_EGL_DEVICE_ID"
"""RLinf's variable with the number of an env worker's first GPU, if it has one."""
EGL_BY_STAGE = ("metaworld", "calvin")
"""RLinf's environments that use the number of a simulator's stage as the number of its EGL device."""
STEP_CONFIGS = ("cfg", "model_cfg")
"""The attributes of RLinf's env worker with a config that its steps read."""


Known = dict[str, KnownConfig] | None
"""The configs of an env worker that its steps read, by attribute; None for the worker's own."""


def known_configs(worker: Any, method: str) -> Known:
    """Return the configs that `method` of an env worker reads; None if the method is not RLinf's own.

    RLinf's method (0.3 and main) reads values. Another may use its config in any way.
    """
    if getattr(type(worker), method) is not getattr(borrowed.EnvWorker, method):
        return None
    return {name: KnownConfig(getattr(worker, name)) for name in STEP_CONFIGS}


def interact_step(
    worker: Any, actions: object, stage: int, env: object, known: Known = None
) -> tuple[EnvStep, dict[str, Any]]:
    """Call `env_interact_step` of RLinf's env worker, with `env` as that stage's environments.

    Returns:
        Their output and statistics. (RLinf's main branch returns a third value, for recorders that these runs
        do not have.)
    """
    with _in_stage(worker.env_list, stage, env), reading(known):
        output, info, *_ = worker.env_interact_step(actions, stage)
    return _env_step(output), info


def evaluate_step(
    worker: Any, actions: object, stage: int, env: object, known: Known = None
) -> tuple[EnvStep, dict[str, Any]]:
    """Call `env_evaluate_step` in the same way."""
    with _in_stage(worker.eval_env_list, stage, env), reading(known):
        output, info, *_ = worker.env_evaluate_step(actions, stage)
    return _env_step(output), info


def _env_step(output: object) -> EnvStep:
    from rlinf_async.hosts.rlinf.trajectory import EnvStep

    return EnvStep.of(output)


@contextmanager
def _in_stage(envs: Any, stage: int, env: object) -> Iterator[None]:
    """Put `env` into this stage for a step; other stages, in other threads, are not touched.

    The worker itself is not copied, as a subclass of it may call `super()`.
    """
    own, envs[stage] = envs[stage], env
    try:
        yield
    finally:
        if envs[stage] is env:  # else the stage was rebuilt while this step hung
            envs[stage] = own


def reward_method(reward_worker: Any) -> Any:
    """Return the method of an RLinf reward worker (a handle) that scores observations.

    It is `compute_image_rewards` in RLinf 0.3, and `compute_reward` in its main branch.
    """
    newer = getattr(reward_worker, "compute_reward", None)
    return newer if newer is not None else reward_worker.compute_image_rewards


def rendering_on_own_gpu(env_cls: type, *, env_type: str, rank: int) -> type:
    """Return a subclass of `env_cls` with simulators that render on their env worker's GPU, for any number of
    stages.

    RLinf's Meta-World and CALVIN use their `seed_offset`, which counts the stages of all env workers, as the
    number of an EGL device. With one stage per worker that is the worker's rank, which is a GPU's number if
    each GPU has a worker. With several stages it is beyond the last GPU, and MuJoCo refuses it.

    Args:
        env_cls: a class of RLinf with `get_env_fns` and `seed_offset`; others are returned unchanged.
        env_type: as `env.train.env_type`.
        rank: the rank of the env worker, which is the device if RLinf sets no variable.
    """
    if env_type not in EGL_BY_STAGE or not hasattr(env_cls, "get_env_fns"):
        return env_cls
    # Read in the env worker, as RLinf's `env_fn` overwrites the variable in the simulator's process.
    device = int(os.environ.get(RLINF_VARIABLE, rank))

    def get_env_fns(self: Any) -> list[Callable[[], Any]]:
        return [partial(_start, self, device, start) for start in env_cls.get_env_fns(self)]

    return type(env_cls.__name__, (env_cls,), {"get_env_fns": get_env_fns})


def _start(env: Any, device: int, start: Callable[[], Any]) -> Any:
    """Start a simulator of `env` in its own process, where `env` is a copy."""
    stage, env.seed_offset = env.seed_offset, device
    try:
        return start()
    finally:
        env.seed_offset = stage
