"""Settings of veRL that our trainer cannot serve, named before Ray starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.kit.keys import Key, shortened
from rlinf_async.hosts.kit.kinds import Flag, Whole
from rlinf_async.hosts.reasons import Change, Reason
from rlinf_async.hosts.tasks import cannot_take_on
from rlinf_async.hosts.verl.algorithms import (
    COMPARING_ESTIMATORS,
    REFUSED_ESTIMATORS,
    VALUE_ESTIMATORS,
    override_for,
    streams,
)
from rlinf_async.hosts.verl.placement import placement_reasons, starts_ray
from rlinf_async.hosts.verl.settings import (
    ACTOR_SECTION,
    MODEL_SECTION,
    ROLLOUT_SECTION,
    VerlSettings,
    evaluates,
    group_size,
    process_count,
    section,
)


def _use(name: str, use: str, why: str, **more: Any) -> Key:
    return Key(name=name, fate="refused", remedy=f"use {use}: {why}", override=f"{name}={use}", **more)


def _false(name: str, why: str) -> Key:
    return _use(name, "false", why, kind=Flag())


def _null(name: str, why: str) -> Key:
    return _use(name, "null", why)


NO_TOKENS_REASON = "samples are decisions, not sequences of tokens"
ONE_MODEL_REASON = "a run has one model, the policy"
CORRECTION_REASON = "async.train.correction takes its place"

OFFLOAD_KEYS = tuple(
    f"{ACTOR_SECTION}.fsdp_config.{name}" for name in ("param_offload", "optimizer_offload", "offload_policy")
)
NO_OFFLOAD_REASON = "the learner works while rollouts go on, and its weights stay where they are"

REFUSED_KEYS = (
    _use(
        "trainer.use_v1",
        "true",
        "only the V1 trainers come from a registry",
        kind=Flag(),
        serves=lambda value: value is True,
    ),
    _use(
        f"{ACTOR_SECTION}.strategy",
        "fsdp2",
        "policies are wrapped by FSDP2",
        serves=lambda value: value == "fsdp2",
    ),
    _false(f"{ACTOR_SECTION}.use_dynamic_bsz", NO_TOKENS_REASON),
    _null(f"{ACTOR_SECTION}.ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu takes its place"),
    _null(
        f"{ROLLOUT_SECTION}.log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu takes its place"
    ),
    _false(f"{MODEL_SECTION}.use_remove_padding", NO_TOKENS_REASON),
    _false(f"{MODEL_SECTION}.use_fused_kernels", NO_TOKENS_REASON),
    _use(
        f"{ACTOR_SECTION}.ulysses_sequence_parallel_size",
        "1",
        NO_TOKENS_REASON,
        kind=Whole(1),
        serves=lambda value: value in (None, 1),
    ),
    _false(f"{ACTOR_SECTION}.calculate_sum_pi_squared", NO_TOKENS_REASON),
    _use(
        f"{ACTOR_SECTION}.fsdp_config.ulysses_sequence_parallel_size",
        "1",
        NO_TOKENS_REASON,
        kind=Whole(1),
        serves=lambda value: value in (None, 1),
    ),
    _false(f"{ACTOR_SECTION}.fsdp_config.forward_only", "the learner trains"),
    _false(f"{ACTOR_SECTION}.qat.enable", "inference acts by the weights that are trained"),
    _false(f"{ACTOR_SECTION}.use_kl_loss", f"{ONE_MODEL_REASON}, and no reference"),
    _false("algorithm.use_kl_in_reward", f"{ONE_MODEL_REASON}, and no reference"),
    _false("distillation.enabled", f"{ONE_MODEL_REASON}, and no teacher"),
    _false("reward.reward_model.enable", "rewards come from the environments"),
    _use(
        "critic.enable",
        "false",
        "values come from the policy's value_head (vla.model.add_value_head=true)",
        kind=Flag(),
        serves=lambda value: value is False,
    ),
    _use("trainer.critic_warmup", "0", "policy and value_head take their steps together", kind=Whole(0)),
    _use(
        f"{MODEL_SECTION}.lora.rank",
        "0",
        f"FSDP2 has adapters by {MODEL_SECTION}.lora_rank",
        kind=Whole(),
        serves=lambda value: value is None or value <= 0,
    ),
    _null(f"{MODEL_SECTION}.lora_adapter_path", "adapters begin fresh; a checkpoint goes on with its own"),
    _null("algorithm.rollout_correction.rollout_is", CORRECTION_REASON),
    _null("algorithm.rollout_correction.rollout_rs", CORRECTION_REASON),
    _false("algorithm.rollout_correction.bypass_mode", CORRECTION_REASON),
    _false("algorithm.filter_groups.enable", "every group is trained"),
    _false("algorithm.use_pf_ppo", "every trajectory is trained as often as any other"),
    _use(
        f"{ACTOR_SECTION}.policy_loss.loss_mode",
        "vanilla",
        CORRECTION_REASON,
        serves=lambda value: value != "bypass_mode",
    ),
    _false(f"{ACTOR_SECTION}.checkpoint.async_save", "a checkpoint is there when its step ends"),
    _false("trainer.val_only", "a run trains; total_training_steps=1 with val_before_train evaluates first"),
    _null("global_profiler.steps", "rlinf-async trace takes its place"),
    _false("env.train.video_cfg.save_video", "no video is recorded"),
    _false("env.eval.video_cfg.save_video", "no video is recorded"),
)


def refusals(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for every key of a plain config that is not served."""
    for key in REFUSED_KEYS:
        value = lookup(cfg, key.name)
        if not key.allows(value):
            setting = f"{key.name}={shortened(value)}"
            yield Reason(f"trainer_mode vla_async does not support {setting}; {key.remedy}", key.override)


def changes_of(cfg: Mapping[str, Any]) -> Iterator[Change]:
    """Yield every setting of a plain config that gives way to the run."""
    for key in OFFLOAD_KEYS:
        if lookup(cfg, key):
            yield Change(key, False, NO_OFFLOAD_REASON)


def contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for settings of a plain config that do not go together."""
    yield from _estimator_contradictions(cfg, asynchrony)
    yield from _other_contradictions(cfg, asynchrony)
    yield from _unsaved_parts(cfg)
    yield from placement_reasons(cfg)


def not_added_up(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
    """Yield a reason if the streamed micro-batches of a policy loss do not add up to an optimizer step."""
    name, mode = (
        str(lookup(cfg, f"{ACTOR_SECTION}.{key}")) for key in ("policy_loss.loss_mode", "loss_agg_mode")
    )
    override = override_for(name, mode) if settings.streams else ""
    if override:
        yield Reason(
            f"async.streamer does not support {ACTOR_SECTION}.policy_loss.loss_mode={name} with "
            f"loss_agg_mode={mode}: that loss is no mean over tokens, and its micro-batches do "
            f"not add up to one; use {override}",
            override,
        )


def too_few_places(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
    """Yield a reason if the Ray that a run on one node starts by itself has no place for each process."""
    key = "ray_kwargs.ray_init.num_cpus"
    places, processes = lookup(cfg, key), process_count(settings.plan)
    if places is not None and places < processes and starts_ray(cfg):
        yield Reason(
            f"{key}={places} has no place for each of {processes} processes: learner ranks, env workers and "
            f"inference ranks; set {key}={processes}, which places processes and may be more than there are "
            "cores",
            f"{key}={processes}",
        )


def _unsaved_parts(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if a run would go on from parts of a checkpoint that none has."""
    load, save = (
        _as_list(lookup(cfg, f"{ACTOR_SECTION}.checkpoint.{key}_contents")) for key in ("load", "save")
    )
    if missing := [name for name in load if name not in save]:
        yield Reason(
            f"{ACTOR_SECTION}.checkpoint.load_contents={load} asks for {', '.join(missing)}, which "
            f"save_contents={save} leaves out; use load_contents={save}",
            f"{ACTOR_SECTION}.checkpoint.load_contents=[{','.join(save)}]",
        )


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _estimator_contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    name = str(lookup(cfg, "algorithm.adv_estimator"))
    if name in COMPARING_ESTIMATORS and group_size(cfg) < 2:
        yield Reason(
            f"algorithm.adv_estimator={name} compares the members of a group, and actor_rollout_ref.rollout.n"
            "=1; use 2 or more, or adv_estimator=gae",
            "actor_rollout_ref.rollout.n=2",
        )
    if name in REFUSED_ESTIMATORS:
        yield Reason(
            f"trainer_mode vla_async does not support algorithm.adv_estimator={name}: "
            f"{REFUSED_ESTIMATORS[name]}; use "
            "gae or grpo",
            "algorithm.adv_estimator=grpo",
        )
    elif name in VALUE_ESTIMATORS and lookup(cfg, "vla.model.add_value_head") is False:
        yield Reason(
            f"algorithm.adv_estimator={name} needs values; set vla.model.add_value_head=true",
            "vla.model.add_value_head=true",
        )
    elif name not in VALUE_ESTIMATORS and section(cfg, "train")["auto_reset"]:
        yield Reason(
            f"algorithm.adv_estimator={name} compares whole episodes, which env.train.auto_reset=true cuts; "
            "use env.train.auto_reset=false",
            "env.train.auto_reset=false",
        )
    if asynchrony.streamer.enabled and asynchrony.advanced.normalization == "running" and not streams(name):
        yield Reason(
            f"async.advanced.normalization=running does not support algorithm.adv_estimator={name}, which "
            "looks at the whole batch; use deferred",
            "async.advanced.normalization=deferred",
        )


def _other_contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    if asynchrony.deterministic and evaluates(cfg):
        yield Reason(
            "async.deterministic does not support evaluation, which draws from the generator that samples "
            "rollouts; use trainer.test_freq=-1 and trainer.val_before_train=false",
            "trainer.test_freq=-1 trainer.val_before_train=false",
        )
    precision = lookup(cfg, f"{ACTOR_SECTION}.fsdp_config.mixed_precision.param_dtype")
    if asynchrony.streamer.enabled and str(precision) in ("fp16", "float16"):
        yield Reason(
            f"async.streamer does not support {ACTOR_SECTION}.fsdp_config.mixed_precision.param_dtype="
            f"{precision}: its scaler may skip a step; use bf16",
            f"{ACTOR_SECTION}.fsdp_config.mixed_precision.param_dtype=bf16",
        )
    if evaluates(cfg) and not isinstance(lookup(cfg, "env.eval"), Mapping):
        yield Reason(
            "trainer.test_freq or trainer.val_before_train asks for evaluation, and there is no env.eval; "
            "add that block, or use trainer.test_freq=-1 and trainer.val_before_train=false",
            "trainer.test_freq=-1 trainer.val_before_train=false",
        )
    yield from cannot_take_on(section(cfg, "train"), asynchrony)
