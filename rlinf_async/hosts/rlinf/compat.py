"""The differences between the versions of RLinf that these classes extend, but for names: see `borrowed`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from rlinf_async.hosts.rlinf import borrowed

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.trajectory import EnvStep


RLINF_VARIABLE = "MUJOCO_EGL_DEVICE_ID"
"""RLinf's variable: the first GPU of an env worker, where it has one."""
BY_STAGE = ("metaworld", "calvin")
"""RLinf's environments whose simulators render on the EGL device that has the number of their stage."""


@contextmanager
def without_compiler() -> Iterator[None]:
    """Import RLinf for a look at it, in a process that computes nothing.

    RLinf has torch compile functions as it is imported, which loads torch's compiler: seconds of imports.
    """
    import torch  # what only reads sources needs it not

    with patch.object(torch, "compile", lambda function=None, **_: function or (lambda given: given)):
        yield


def fail_unless_cleared() -> None:
    """Let the process end with its own exit status: RLinf's main branch turns most failures into 0.

    There, an exit hook ends the process with status 0 unless an exception has reached `sys.excepthook`, which
    Hydra's own `sys.exit(1)` does not. `clear_failure` is called when a run has ended well.
    """
    _note_failure(True)


def clear_failure() -> None:
    """The run has ended well; see `fail_unless_cleared`."""
    _note_failure(False)


def interact_step(worker: Any, actions: object, stage: int, env: object) -> tuple[EnvStep, dict[str, Any]]:
    """`env_interact_step` of RLinf's env worker, of `env` in that stage: what it showed and its statistics.

    RLinf's main branch returns a third value, for recorders that these runs do not have.
    """
    with _in_stage(worker.env_list, stage, env):
        output, info, *_ = worker.env_interact_step(actions, stage)
    return _env_step(output), info


def evaluate_step(worker: Any, actions: object, stage: int, env: object) -> tuple[EnvStep, dict[str, Any]]:
    """The same of `env_evaluate_step`."""
    with _in_stage(worker.eval_env_list, stage, env):
        output, info, *_ = worker.env_evaluate_step(actions, stage)
    return _env_step(output), info


def _env_step(output: object) -> EnvStep:
    from rlinf_async.hosts.rlinf.trajectory import EnvStep

    return EnvStep.of(output)


@contextmanager
def _in_stage(envs: Any, stage: int, env: object) -> Iterator[None]:
    """`env` stands in this stage for a step. Other stages, in other threads, are left alone.

    The worker itself must stay what it is: a subclass of it may call `super()`.
    """
    own, envs[stage] = envs[stage], env
    try:
        yield
    finally:
        if envs[stage] is env:  # else others have been built in its place, while this step hung
            envs[stage] = own


def reward_method(reward_worker: Any) -> Any:
    """The method of RLinf's reward workers that scores what environments show; `reward_worker` is a handle.

    It is `compute_image_rewards` of RLinf 0.3, and `compute_reward` of its main branch.
    """
    newer = getattr(reward_worker, "compute_reward", None)
    return newer if newer is not None else reward_worker.compute_image_rewards


def explained_variance(
    metrics: dict[str, list[Any]], reduce: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> dict[str, float]:
    """The critic's explained variance over a batch, on RLinf versions whose losses report sums for it.

    The sums are taken out of `metrics`, and `reduce` adds them over the ranks. Losses of RLinf 0.3 report
    the variance of each micro-batch instead, to be averaged as other metrics are: then nothing is taken.
    """
    if not borrowed.is_here("pop_critic_explained_variance_stats"):
        return {}
    sums = borrowed.pop_critic_explained_variance_stats(metrics)
    if not sums:
        return {}
    variance = borrowed.compute_critic_explained_variance_from_stats(reduce(sums))
    return {borrowed.CRITIC_EXPLAINED_VARIANCE_KEY: float(variance)}


def _note_failure(has_failed: bool) -> None:
    cluster = borrowed.Cluster
    # RLinf 0.3 has neither the flag nor the exit hook.
    if hasattr(cluster, "_run_failed"):
        cluster._run_failed = has_failed


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
    # Read here, in the env worker: RLinf's `env_fn` overwrites the variable in the simulator's process.
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
