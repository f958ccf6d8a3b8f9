"""The settings of a run, resolved once in the driver from RLinf's config and passed to every worker."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup
from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.sharding import ShardPlan, nearest_divisor, nearest_multiple
from rlinf_async.hosts.dead_work import why_later_steps_count
from rlinf_async.hosts.judge.reasons import Reason, refuse
from rlinf_async.hosts.rlinf.left_out import MEAN_OVERRIDE, is_summed, left_out
from rlinf_async.hosts.rlinf.losses import GAE_TYPE, GRPO_TYPE
from rlinf_async.hosts.rlinf.padding import buckets_up_to
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.view import RLinfView
from rlinf_async.hosts.shard_choices import shard_choices
from rlinf_async.hosts.simulators import (
    Evaluation,
    divide,
    hold_one_environment,
    max_batch_size,
    request_reasons,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

OFFLOAD_KEYS = tuple(f"{section}.enable_offload" for section in ("actor", "rollout", "env.train", "env.eval"))
"""RLinf's keys that move a part off its accelerator while another works."""


def read_settings(cfg: Mapping[str, Any], asynchrony: AsyncConfig, sizes: Mapping[str, int]) -> RLinfSettings:
    """Read the settings from a config, with every `auto` resolved.

    Args:
        cfg: RLinf's config as plain data.
        sizes: the number of processes of each component.

    Raises:
        ValueError: sizes do not fit together; with the nearest ones that do.
    """
    view = RLinfView.of(cfg)
    plan, chunks = _plan(view, asynchrony, sizes), view.num_action_chunks
    takes_turns, evaluation = offloading(cfg, asynchrony), _evaluation(view)
    micro = asynchrony.streamer.micro_batch_size if asynchrony.streamer.enabled else "auto"
    most = max_batch_size(asynchrony.rollout, plan, evaluation)
    settings = RLinfSettings(
        asynchrony=asynchrony,
        plan=plan,
        horizon=view.max_steps_per_rollout_epoch // chunks,
        steps_per_decision=chunks,
        batches=last_step(view.runner)[1],
        global_batch_size=view.global_batch_size,
        micro_batch_size=view.micro_batch_size if micro == "auto" else int(micro),
        update_epoch=view.update_epoch,
        max_batch_size=most,
        buckets=_buckets(view, asynchrony, plan, most),
        loss=str(view.loss),
        advantage=str(view.advantage),
        # RLinf's actor does not pass `normalize_advantages`, and its default in GAE is True.
        normalizes=view.advantage == GAE_TYPE,
        seed=view.seed,
        # -1 means never in RLinf; here 0 does.
        save_every=max(0, view.save_interval),
        takes_turns=takes_turns,
        skips_ended=asynchrony.skip.ended and not any(counts_after_the_end(view)),
        shard_choices=() if takes_turns else _shard_choices(view, asynchrony, plan, most),
        left_out=left_out(view) if asynchrony.skip.masked else LeftOut(),
    )
    chunk_reasons = list(_chunk_reasons(view))
    refuse(
        [
            *chunk_reasons,
            *_group_name_reasons(view),
            *size_reasons(view, sizes.get("reward", 0)),
            *request_reasons(settings),
            # Samples are counted in chunks.
            *([] if chunk_reasons else _batch_reasons(settings, view)),
            *evaluation.size_reasons(settings),
        ]
    )
    return settings


def _batch_reasons(settings: RLinfSettings, view: RLinfView) -> Iterator[Reason]:
    plan, micro, whole = settings.plan, settings.micro_batch_size, settings.global_batch_size
    per_step = micro * plan.learner_ranks
    samples = (
        f"{settings.samples_per_batch} samples per step ({plan.total_envs} environments x "
        f"{plan.rollout_epochs} rollout epochs x {settings.horizon} decisions)"
    )
    if settings.samples_per_batch % per_step:
        per_rank = settings.samples_per_batch // plan.learner_ranks
        nearest = nearest_divisor(per_rank, micro)
        yield Reason(
            f"micro_batch_size={micro} x {plan.learner_ranks} learner ranks do not "
            f"divide {samples}; nearest micro_batch_size: {nearest}{_other_total(settings, view)}"
        )
    elif whole % per_step or settings.samples_per_batch % whole:
        steps = settings.samples_per_batch // per_step
        nearest = per_step * nearest_divisor(steps, whole / per_step)
        yield Reason(
            f"actor.global_batch_size={whole} must be a multiple of micro_batch_size="
            f"{micro} x {plan.learner_ranks} learner ranks, and divide {samples}; "
            f"nearest: {nearest}",
            f"actor.global_batch_size={nearest}",
        )


def _other_total(settings: RLinfSettings, view: RLinfView) -> str:
    """Return, as the end of a sentence, the nearest number of environments that keeps the micro-batch
    size, and the global batch size if that is a multiple of it.
    """
    plan, rollout = settings.plan, settings.asynchrony.rollout
    micro, whole = settings.micro_batch_size * plan.learner_ranks, settings.global_batch_size
    samples = micro if whole % micro else whole
    # A number of shards that is chosen by itself follows the number of environments.
    is_chosen = rollout.enabled and rollout.shards == "auto"
    shards = view.stages if is_chosen else plan.shards_per_worker
    shards = 1 if hold_one_environment(view.train) else shards
    groups = plan.group_size * math.lcm(plan.env_workers * shards, plan.learner_ranks)
    each = math.lcm(samples // math.gcd(samples, plan.rollout_epochs * settings.horizon), groups)
    nearest = nearest_multiple(plan.total_envs, each)
    return f", or env.train.total_num_envs: {nearest}" if nearest != plan.total_envs else ""


def _chunk_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason if an episode is not a whole number of action chunks."""
    chunk = view.num_action_chunks
    # RLinf requires it for evaluation, too.
    for mode, section in view.env_sections.items():
        steps = section.get("max_steps_per_rollout_epoch", chunk)
        if steps % chunk:
            nearest = nearest_multiple(steps, chunk)
            yield Reason(
                f"env.{mode}.max_steps_per_rollout_epoch={steps} is no multiple of actor.model."
                f"num_action_chunks={chunk}; nearest: {nearest}",
                f"env.{mode}.max_steps_per_rollout_epoch={nearest}",
            )


def _group_name_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason for each name that two of RLinf's worker groups have, as Ray refuses the second."""
    keys: dict[str, list[str]] = {}
    for section in ("actor", "rollout", "env"):
        keys.setdefault(str(lookup(view.cfg, f"{section}.group_name")), []).append(f"{section}.group_name")
    for name, alike in keys.items():
        if len(alike) > 1 and lookup(view.cfg, alike[0]) is not None:
            yield Reason(
                f"{' and '.join(alike)} are both {name}; give each group of workers a name of its own"
            )


def _buckets(view: RLinfView, asynchrony: AsyncConfig, plan: ShardPlan, most: int) -> tuple[int, ...]:
    """Return batch sizes to pad to: one for CUDA graphs, or several for compiled policies, as each size
    compiles anew.
    """
    if view.rollout.get("enable_cuda_graph"):
        return (most if asynchrony.rollout.enabled else _all_in_flight(view, asynchrony, plan),)
    skips_ended = asynchrony.skip.ended
    pads = (asynchrony.rollout.enabled or skips_ended) and view.rollout.get("enable_torch_compile")
    if not asynchrony.rollout.enabled:
        most = _all_in_flight(view, asynchrony, plan)
    # Once some episodes have ended, a shard's request may have any size.
    return buckets_up_to(most, least=1 if skips_ended else plan.envs_per_shard) if pads else ()


def _all_in_flight(view: RLinfView, asynchrony: AsyncConfig, plan: ShardPlan) -> int:
    """Return the environments in the largest batch while level 2 is off: those of all shards that share a
    queue.
    """
    queues = [plan.queue(shard) for shard in range(plan.shards)]
    # As in `loops.queues`: in a deterministic run all stages of a rank share a queue.
    sharing = Counter(queue[:1] if asynchrony.deterministic else queue for queue in queues)
    return max(sharing.values()) * max(plan.envs_per_shard, _evaluation(view).of_shard(plan))


def _evaluation(view: RLinfView) -> Evaluation:
    return Evaluation(view.env_sections.get("eval"))


def _group_size(view: RLinfView) -> int:
    """Return the size of groups that stay in one shard: of equal initial states, and of compared advantages.

    RLinf compares `algorithm.group_size` neighbours; `env.train.group_size` neighbours have equal initial
    states.
    """
    return math.lcm(view.alike, view.group_size if view.advantage == GRPO_TYPE else 1)


def _plan(view: RLinfView, asynchrony: AsyncConfig, sizes: Mapping[str, int]) -> ShardPlan:
    one_each = ShardPlan(
        total_envs=view.total_num_envs,
        env_workers=sizes["env"],
        inference_ranks=sizes["rollout"],
        learner_ranks=sizes["actor"],
        shards_per_worker=1,
        rollout_epochs=view.rollout_epoch,
        group_size=_group_size(view),
    )
    return divide(
        one_each,
        view.train,
        asynchrony.rollout,
        stages=view.stages,
        evaluates=_evaluation(view).fits,
    )


def _shard_choices(view: RLinfView, asynchrony: AsyncConfig, plan: ShardPlan, most: int) -> tuple[int, ...]:
    return shard_choices(
        plan, view.train, asynchrony, stages=view.stages, evaluation=_evaluation(view), most=most
    )


def counts_after_the_end(view: RLinfView) -> Iterator[Reason]:
    """Yield the reasons why steps after the end of an episode count in the training.

    With one of them `async.skip.ended` leaves no steps out; each has the override that removes it.
    """
    yield from why_later_steps_count(view.train)
    if view.scored_by_workers and view.assigns_history:
        yield Reason(
            "reward.history_reward_assign=true: a reward of a step after the end is given to steps before it",
            "reward.history_reward_assign=false",
        )
    if is_summed(view):
        yield Reason(
            "algorithm.entropy_type=chunk_level: RLinf's entropy bonus is a sum over masked samples, too",
            MEAN_OVERRIDE,
        )


def overlap(asynchrony: AsyncConfig) -> bool:
    """Return True if training and rollouts overlap in time."""
    return asynchrony.train.enabled or asynchrony.streamer.enabled


def offloading(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    """Return True if the parts of a run of `cfg` (plain data) take turns on their accelerators."""
    return not overlap(asynchrony) and any(lookup(cfg, key) for key in OFFLOAD_KEYS)


def size_reasons(view: RLinfView, workers: int) -> Iterator[Reason]:
    """Yield the reason why RLinf refuses `workers` reward workers."""
    if view.scored_by_workers and workers and view.total_num_envs % workers:
        yield Reason(
            f"env.train.total_num_envs={view.total_num_envs} must be a multiple of the {workers} reward "
            "workers that cluster.component_placement.reward places"
        )


def last_step(runner: Mapping[str, Any] | DictConfig) -> tuple[str, int]:
    """Return the key in the section `runner` that ends the run, and the number of the last step."""
    epochs, most = runner.get("max_epochs"), runner.get("max_steps")
    if epochs is None:
        raise ValueError("the config gives no runner.max_epochs, which RLinf needs")
    # As RLinf's `set_max_steps`: an epoch is one step, and a negative `max_steps` means no limit.
    if most is not None and 0 <= int(most) < int(epochs):
        return "runner.max_steps", int(most)
    return "runner.max_epochs", int(epochs)
