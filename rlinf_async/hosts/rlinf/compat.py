"""What differs between the versions of RLinf that these classes extend: the only place that knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from rlinf_async.hosts.rlinf import borrowed

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.trajectory import EnvStep


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
    return _shown(output), info


def evaluate_step(worker: Any, actions: object, stage: int, env: object) -> tuple[EnvStep, dict[str, Any]]:
    """The same of `env_evaluate_step`."""
    with _in_stage(worker.eval_env_list, stage, env):
        output, info, *_ = worker.env_evaluate_step(actions, stage)
    return _shown(output), info


def _shown(output: object) -> EnvStep:
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


def drop_metric_logger(logger: Any) -> None:
    """Close a `MetricLogger` that has failed; its finalizer finds nothing left to close."""
    try:
        logger.finish()
    finally:
        logger._all_loggers = []


def _note_failure(failed: bool) -> None:
    cluster = borrowed.Cluster
    if hasattr(cluster, "_run_failed"):
        cluster._run_failed = failed
