"""The settings of a run under veRL, and the division of its environments, from a config as plain data.

Env workers and inference ranks import this module as well, so it imports neither veRL nor Ray.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup, shortened
from rlinf_async.core.sharding import ShardPlan, nearest_divisor, nearest_multiple
from rlinf_async.core.types import RatioLevel
from rlinf_async.hosts.judge.reasons import Reason, refuse
from rlinf_async.hosts.judge.table import COUNT_KIND, Key
from rlinf_async.hosts.simulators import Evaluation, divide, request_reasons
from rlinf_async.hosts.workers.settings import WorkerSettings

ACTOR_SECTION = "actor_rollout_ref.actor"
MODEL_SECTION = "actor_rollout_ref.model"
ROLLOUT_SECTION = "actor_rollout_ref.rollout"


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


def whole(cfg: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    """Return the integer of at least 1 at a dotted key.

    Raises:
        ValueError: the value is not such a number.
    """
    value: Any = lookup(cfg, key)
    value = default if value is None else value
    reason = Key(name=key, kind=COUNT_KIND, required=True).reason(value)
    refuse([reason] if reason else [])
    return int(value)


def group_size(cfg: Mapping[str, Any]) -> int:
    """Return the number of trajectories with the same initial state, veRL's `rollout.n`."""
    return whole(cfg, f"{ROLLOUT_SECTION}.n", default=1)


def section(cfg: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Return `env.train` or `env.eval`, completed from other keys of the config.

    Raises:
        ValueError: the block is missing or has no `env_class`, or its simulator's name is not a string.
    """
    block = lookup(cfg, f"env.{mode}")
    if not isinstance(block, Mapping):
        raise ValueError(f"env.{mode}={shortened(block)} must be a block with env_class and total_num_envs")
    if not block.get("env_class"):
        raise ValueError(f"env.{mode}.env_class is missing; name an entry point of rlinf_async.envs")
    section = {
        "env_type": block.get("simulator_type") or block["env_class"],
        "group_size": group_size(cfg) if mode == "train" else 1,
        "seed": lookup(cfg, f"{ACTOR_SECTION}.data_loader_seed") or 0,
        "auto_reset": False,
        "ignore_terminations": False,
        "is_eval": mode == "eval",
        # Last: the block's own values take precedence.
        **block,
    }
    if not isinstance(section["env_type"], str):
        raise ValueError(
            f"env.{mode}.env_type={shortened(section['env_type'])} must be the name of a simulator"
        )
    return section


def horizon(cfg: Mapping[str, Any], mode: str) -> int:
    """Return the number of decisions in one rollout.

    Raises:
        ValueError: a rollout is not a whole number of decisions.
    """
    env, chunks = section(cfg, mode), whole(cfg, "vla.model.num_action_chunks")
    key = "max_steps_per_rollout_epoch" if env.get("max_steps_per_rollout_epoch") else "max_episode_steps"
    steps = whole(cfg, f"env.{mode}.{key}")
    if steps % chunks:
        nearest = nearest_multiple(steps, chunks)
        raise ValueError(
            f"env.{mode}.{key}={steps} is not made of decisions of vla.model.num_action_chunks={chunks} "
            f"steps; nearest: {nearest}"
        )
    return steps // chunks


def learner_ranks(cfg: Mapping[str, Any]) -> int:
    return whole(cfg, "trainer.nnodes") * whole(cfg, "trainer.n_gpus_per_node")


def inference_ranks(cfg: Mapping[str, Any]) -> int:
    """Return `vla.inference.ranks`, else the number of accelerators in veRL's rollout section, else 1."""
    nodes = lookup(cfg, f"{ROLLOUT_SECTION}.nnodes") or 0
    rollout_gpus = nodes * whole(cfg, f"{ROLLOUT_SECTION}.n_gpus_per_node", default=1)
    return whole(cfg, "vla.inference.ranks", default=rollout_gpus or 1)


def process_count(plan: ShardPlan) -> int:
    """Return the number of Ray CPUs that a run needs: one for each of its processes."""
    return plan.learner_ranks + plan.env_workers + plan.inference_ranks


def rollout_epochs(cfg: Mapping[str, Any]) -> int:
    """Return the number of rollouts of every environment for a global batch.

    Raises:
        ValueError: the global batch is not a multiple of the environments.
    """
    prompts, members = whole(cfg, "data.train_batch_size"), group_size(cfg)
    envs, trajectories = whole(cfg, "env.train.total_num_envs"), prompts * members
    if trajectories % envs:
        nearest = nearest_multiple(trajectories, envs)
        advice = f"data.train_batch_size={nearest // members}" if nearest % members == 0 else "other numbers"
        raise ValueError(
            f"data.train_batch_size={prompts} x {ROLLOUT_SECTION}.n={members} are {trajectories} "
            "trajectories, which "
            f"must be a multiple of env.train.total_num_envs={envs}; nearest: {advice}"
        )
    return trajectories // envs


def evaluates(cfg: Mapping[str, Any]) -> bool:
    """Return True if the run has evaluations."""
    # veRL's -1 means never, and so do 0 and null.
    return (lookup(cfg, "trainer.test_freq") or -1) > 0 or bool(lookup(cfg, "trainer.val_before_train"))


def make_plan(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> ShardPlan:
    """Return the plan that assigns environments to workers, shards and ranks.

    Raises:
        ValueError: numbers do not divide; with the nearest that do.
    """
    one_each = ShardPlan(
        total_envs=whole(cfg, "env.train.total_num_envs"),
        env_workers=whole(cfg, "env.workers", default=1),
        inference_ranks=inference_ranks(cfg),
        learner_ranks=learner_ranks(cfg),
        shards_per_worker=1,
        rollout_epochs=rollout_epochs(cfg),
        group_size=group_size(cfg),
    )
    return divide(
        one_each,
        section(cfg, "train"),
        asynchrony.rollout,
        stages=whole(cfg, "env.stages", default=1),
        evaluates=evaluation(cfg).fits,
    )


def evaluation(cfg: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation environments of a run.

    Raises:
        ValueError: the run evaluates and has no `env.eval.total_num_envs`.
    """
    if not evaluates(cfg):
        return Evaluation(None)
    return Evaluation({**section(cfg, "eval"), "total_num_envs": whole(cfg, "env.eval.total_num_envs")})


def size_reasons(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
    """Yield the sizes of steps, batches and evaluation that do not fit together, with the nearest that do."""
    yield from request_reasons(settings)
    yield from _step_reasons(settings)
    yield from evaluation(cfg).size_reasons(settings)


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
        yield Reason(
            f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu={micro} x {plan.learner_ranks} learner ranks "
            "do not "
            f"divide an optimizer step of {settings.global_batch_size} samples; nearest: {nearest}",
            f"{ACTOR_SECTION}.ppo_micro_batch_size_per_gpu={nearest}",
        )
