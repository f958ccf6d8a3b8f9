"""The settings of a run under veRL, and the division of its environments, from a config as plain data.

Env workers and inference ranks import this module as well, so it imports neither veRL nor Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import completed, shortened
from rlinf_async.core.sharding import ShardPlan, nearest_divisor, nearest_multiple
from rlinf_async.core.types import RatioLevel
from rlinf_async.hosts.judge.reasons import Reason, refuse
from rlinf_async.hosts.judge.table import COUNT_KIND, Key
from rlinf_async.hosts.simulators import Evaluation, divide, request_reasons
from rlinf_async.hosts.verl.view import ACTOR_SECTION, FSDP_SECTION, ROLLOUT_SECTION, VerlView
from rlinf_async.hosts.workers.settings import WorkerSettings


@dataclass(frozen=True, kw_only=True)
class VerlSettings(WorkerSettings):
    """The settings of a run in trainer mode `vla_async`; `config` documents the meaning of veRL's keys."""

    ratio_level: RatioLevel
    """`vla.ratio_level`: the level of probability ratios, one for each entry of veRL's `response_mask`."""
    estimator: str
    """veRL's `algorithm.adv_estimator`."""
    lam: float
    norm_by_std: bool
    """veRL's `algorithm.norm_adv_by_std_in_grpo`."""
    value_clip: float
    """veRL's `critic.cliprange_value`."""


KEYS_OF_SIZES = {
    "environments": "env.train.total_num_envs",
    "in groups": f"{ROLLOUT_SECTION}.n",
    "env workers": "env.workers",
    "number of shards": "async.rollout.shards or env.stages",
    "learner ranks": "trainer.nnodes x trainer.n_gpus_per_node",
}
"""The words for sizes in the errors of a plan, and the keys that set them."""


def whole(value: Any, name: str) -> int:
    """Return the value of the key `name` as an integer of at least 1.

    Raises:
        ValueError: the value is not such a number, or None.
    """
    reason = Key(name=name, kind=COUNT_KIND, required=True).reason(value)
    refuse([reason] if reason else [])
    return int(value)


def section(view: VerlView, mode: str) -> dict[str, Any]:
    """Return `env.train` or `env.eval`, completed from other keys of the config.

    Raises:
        ValueError: the block is missing or has no `env_class`, or its simulator's name is not a string.
    """
    block = view.train if mode == "train" else view.evaluation
    if not isinstance(block, Mapping):
        raise ValueError(f"env.{mode}={shortened(block)} must be a block with env_class and total_num_envs")
    if not block.get("env_class"):
        raise ValueError(f"env.{mode}.env_class is missing; name an entry point of rlinf_async.envs")
    usual = {
        "env_type": block.get("simulator_type") or block["env_class"],
        "group_size": view.group_size if mode == "train" else 1,
        "seed": view.seed,
        "auto_reset": False,
        "ignore_terminations": False,
        "is_eval": mode == "eval",
    }
    section = completed(block, usual)
    if not isinstance(section["env_type"], str):
        raise ValueError(
            f"env.{mode}.env_type={shortened(section['env_type'])} must be the name of a simulator"
        )
    return section


def horizon(view: VerlView, mode: str) -> int:
    """Return the number of decisions in one rollout.

    Raises:
        ValueError: a rollout is not a whole number of decisions.
    """
    env, chunks = section(view, mode), view.num_action_chunks
    key = "max_steps_per_rollout_epoch" if env.get("max_steps_per_rollout_epoch") else "max_episode_steps"
    steps = whole(env.get(key), f"env.{mode}.{key}")
    if steps % chunks:
        nearest = nearest_multiple(steps, chunks)
        raise ValueError(
            f"env.{mode}.{key}={steps} is not made of decisions of vla.model.num_action_chunks={chunks} "
            f"steps; nearest: {nearest}"
        )
    return steps // chunks


def process_count(plan: ShardPlan) -> int:
    """Return the number of Ray CPUs that a run needs: one for each of its processes."""
    return plan.learner_ranks + plan.env_workers + plan.inference_ranks


def rollout_epochs(view: VerlView) -> int:
    """Return the number of rollouts of every environment for a global batch.

    Raises:
        ValueError: the global batch is not a multiple of the environments.
    """
    prompts, members = view.train_batch_size, view.group_size
    envs, trajectories = view.total_num_envs, prompts * members
    if trajectories % envs:
        nearest = nearest_multiple(prompts, envs // gcd(envs, members))
        raise ValueError(
            f"data.train_batch_size={prompts} x {ROLLOUT_SECTION}.n={members} are {trajectories} "
            "trajectories, which "
            f"must be a multiple of env.train.total_num_envs={envs}; nearest: data.train_batch_size={nearest}"
        )
    return trajectories // envs


def make_plan(view: VerlView, asynchrony: AsyncConfig) -> ShardPlan:
    """Return the plan that assigns environments to workers, shards and ranks. An error names their keys.

    Raises:
        ValueError: numbers do not divide; with the nearest that do.
    """
    epochs = rollout_epochs(view)
    try:
        one_each = ShardPlan(
            total_envs=view.total_num_envs,
            env_workers=view.env_workers,
            inference_ranks=view.inference_ranks,
            learner_ranks=view.learner_ranks,
            shards_per_worker=1,
            rollout_epochs=epochs,
            group_size=view.group_size,
        )
        return divide(
            one_each,
            section(view, "train"),
            asynchrony.rollout,
            stages=view.stages,
            evaluates=evaluation(view).fits,
        )
    except ValueError as error:
        keys = [key for word, key in KEYS_OF_SIZES.items() if word in str(error) and key not in str(error)]
        raise ValueError(f"{error} ({', '.join(keys)})" if keys else str(error)) from error


def evaluation(view: VerlView) -> Evaluation:
    """Return the evaluation environments of a run.

    Raises:
        ValueError: the run evaluates and has no `env.eval.total_num_envs`.
    """
    if not view.evaluates:
        return Evaluation(None)
    env = section(view, "eval")
    number = whole(env.get("total_num_envs"), "env.eval.total_num_envs")
    return Evaluation({**env, "total_num_envs": number})


def size_reasons(view: VerlView, settings: VerlSettings) -> Iterator[Reason]:
    """Yield the sizes of steps, batches and evaluation that do not fit together, with the nearest that do."""
    size, ranks = view.fsdp_size, settings.plan.learner_ranks
    if 0 <= size < ranks and (size == 0 or ranks % size):
        yield Reason(
            f"{FSDP_SECTION}.fsdp_size={size} does not divide the learner ranks, of which there are {ranks}; "
            "use -1 to share weights among all",
            f"{FSDP_SECTION}.fsdp_size=-1",
        )
    yield from request_reasons(settings)
    yield from _step_reasons(settings)
    yield from evaluation(view).size_reasons(settings)


def _step_reasons(settings: VerlSettings) -> Iterator[Reason]:
    plan, micro = settings.plan, settings.micro_batch_size
    per_pass = micro * plan.learner_ranks
    samples = settings.samples_per_batch
    step = (
        f"{samples} samples per step ({plan.trajectories_per_batch} trajectories x {settings.horizon} "
        "decisions)"
    )
    if samples % settings.global_batch_size:
        per_trajectory = settings.horizon * plan.group_size
        mini = settings.global_batch_size // per_trajectory
        nearest = nearest_divisor(samples // per_trajectory, mini)
        yield Reason(
            f"{ACTOR_SECTION}.ppo_mini_batch_size={mini} (x {plan.group_size} x {settings.horizon} "
            "decisions = "
            f"{settings.global_batch_size} samples) does not divide {step}; nearest: {nearest}",
            f"{ACTOR_SECTION}.ppo_mini_batch_size={nearest}",
        )
    elif settings.global_batch_size % per_pass:
        each = max(1, settings.global_batch_size // plan.learner_ranks)
        nearest = nearest_divisor(each, micro)
        streamer = settings.asynchrony.streamer
        own = streamer.enabled and streamer.micro_batch_size != "auto"
        key = "async.streamer.micro_batch_size" if own else f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu"
        yield Reason(
            f"{key}={micro} x {plan.learner_ranks} learner ranks do not divide an optimizer step of "
            f"{settings.global_batch_size} samples; nearest: {nearest}",
            f"{key}={nearest}",
        )
