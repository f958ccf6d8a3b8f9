"""Settings of veRL that our trainer cannot serve, named before Ray starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.resets import cannot_reset_ahead
from rlinf_async.hosts.tasks import cannot_take_on
from rlinf_async.hosts.verl.block import value_at
from rlinf_async.hosts.verl.estimators import REFUSED, WITH_VALUES, streams
from rlinf_async.hosts.verl.policy_losses import override_for
from rlinf_async.hosts.verl.settings import VerlSettings
from rlinf_async.hosts.verl.sizes import evaluates, section

ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"


def _off(value: object) -> bool:
    return not value


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A setting, the values that are served, and what to do about others."""

    key: str
    serves: Callable[[Any], bool] = _off
    use: str
    """A value that is served, as in a Hydra override."""
    why: str


def _false(key: str, why: str) -> Refusal:
    return Refusal(key=key, use="false", why=why)


def _null(key: str, why: str) -> Refusal:
    return Refusal(key=key, use="null", why=why)


RESIDENT = "learner and inference work at the same time, each on its own accelerators"
TOKENS = "samples are decisions, not sequences of tokens"
ONE_MODEL = "a run has one model, the policy"
CORRECTION = "async.train.correction takes its place"

REFUSALS = (
    Refusal(key="trainer.use_v1", serves=bool, use="true", why="only the V1 trainers come from a registry"),
    Refusal(
        key=f"{ACTOR}.strategy",
        serves=lambda value: value == "fsdp2",
        use="fsdp2",
        why="policies are wrapped by FSDP2",
    ),
    _false(f"{ACTOR}.use_dynamic_bsz", TOKENS),
    _false(f"{MODEL}.use_remove_padding", TOKENS),
    _false(f"{MODEL}.use_fused_kernels", TOKENS),
    Refusal(
        key=f"{ACTOR}.ulysses_sequence_parallel_size",
        serves=lambda value: value in (None, 1),
        use="1",
        why=TOKENS,
    ),
    _false(f"{ACTOR}.calculate_sum_pi_squared", TOKENS),
    _false(f"{ACTOR}.fsdp_config.param_offload", RESIDENT),
    _false(f"{ACTOR}.fsdp_config.optimizer_offload", RESIDENT),
    _false(f"{ACTOR}.fsdp_config.offload_policy", RESIDENT),
    _false(f"{ACTOR}.use_kl_loss", f"{ONE_MODEL}, and no reference"),
    _false("algorithm.use_kl_in_reward", f"{ONE_MODEL}, and no reference"),
    _false("distillation.enabled", f"{ONE_MODEL}, and no teacher"),
    _false("reward.reward_model.enable", "rewards come from the environments"),
    Refusal(
        key="critic.enable",
        serves=lambda value: value is False,
        use="false",
        why="values come from the policy's value_head (vla.model.add_value_head=true)",
    ),
    Refusal(
        key="trainer.critic_warmup",
        serves=lambda value: not value,
        use="0",
        why="policy and value_head take their steps together",
    ),
    Refusal(
        key=f"{MODEL}.lora_rank",
        serves=lambda value: value is None or value <= 0,
        use="0",
        why="adapters are not supported",
    ),
    Refusal(
        key=f"{MODEL}.lora.rank",
        serves=lambda value: value is None or value <= 0,
        use="0",
        why="adapters are not supported",
    ),
    _null(f"{MODEL}.lora_adapter_path", "adapters are not supported"),
    _null("algorithm.rollout_correction.rollout_is", CORRECTION),
    _null("algorithm.rollout_correction.rollout_rs", CORRECTION),
    _false("algorithm.rollout_correction.bypass_mode", CORRECTION),
    _false("algorithm.filter_groups.enable", "every group is trained"),
    _false("algorithm.use_pf_ppo", "every trajectory is trained as often as any other"),
    Refusal(
        key=f"{ACTOR}.policy_loss.loss_mode",
        serves=lambda value: value != "bypass_mode",
        use="vanilla",
        why=CORRECTION,
    ),
    _false(f"{ACTOR}.checkpoint.async_save", "a checkpoint is there when its step ends"),
    _false("trainer.val_only", "a run trains; total_training_steps=1 with val_before_train evaluates first"),
    _null("global_profiler.steps", "async.trace and rlinf-async trace take its place"),
    _false("env.train.video_cfg.save_video", "no video is recorded"),
    _false("env.eval.video_cfg.save_video", "no video is recorded"),
)


def refused(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Everything in a plain config that is not served."""
    for refusal in REFUSALS:
        value = value_at(cfg, refusal.key)
        if not refusal.serves(value):
            override = f"{refusal.key}={refusal.use}"
            yield Reason(
                f"trainer_mode vla_async does not support {refusal.key}={value!r}; use {refusal.use}: "
                f"{refusal.why}",
                override,
            )
    yield from _estimator(cfg, asynchrony)
    yield from _contradictions(cfg, asynchrony)


def not_added_up(cfg: Mapping[str, Any], settings: VerlSettings) -> Iterator[Reason]:
    """A policy loss whose micro-batches do not add up to an optimizer step, where they are streamed."""
    name, mode = (str(value_at(cfg, f"{ACTOR}.{key}")) for key in ("policy_loss.loss_mode", "loss_agg_mode"))
    override = override_for(name, mode) if settings.streams else ""
    if override:
        yield Reason(
            f"async.streamer does not support {ACTOR}.policy_loss.loss_mode={name} with loss_agg_mode={mode}"
            f": that loss is no mean over tokens, and its micro-batches do not add up to one; use {override}",
            override,
        )


def _estimator(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    name = str(value_at(cfg, "algorithm.adv_estimator"))
    if name in REFUSED:
        yield Reason(
            f"trainer_mode vla_async does not support algorithm.adv_estimator={name}: {REFUSED[name]}; use "
            "gae or grpo",
            "algorithm.adv_estimator=grpo",
        )
    elif name in WITH_VALUES and value_at(cfg, "vla.model.add_value_head") is False:
        yield Reason(
            f"algorithm.adv_estimator={name} needs values; set vla.model.add_value_head=true",
            "vla.model.add_value_head=true",
        )
    elif name not in WITH_VALUES and section(cfg, "train")["auto_reset"]:
        yield Reason(
            f"algorithm.adv_estimator={name} compares whole episodes, which env.train.auto_reset=true cuts; "
            "use env.train.auto_reset=false",
            "env.train.auto_reset=false",
        )
    if asynchrony.streamer.enabled and asynchrony.streamer.normalization == "running" and not streams(name):
        yield Reason(
            f"async.streamer.normalization=running does not support algorithm.adv_estimator={name}, which "
            "looks at the whole batch; use deferred",
            "async.streamer.normalization=deferred",
        )
    if asynchrony.correction == "vtrace" and name not in WITH_VALUES:
        yield Reason(
            f"async.train.correction=vtrace estimates advantages with values, which algorithm.adv_estimator="
            f"{name} has not; use correction=decoupled or tis",
            "async.train.correction=decoupled",
        )


def _contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    if asynchrony.publication == "host":
        yield Reason(
            "async.publication=host: no transport of veRL's serves policies that are not language models; "
            "use async.publication=beside",
            "async.publication=beside",
        )
    if asynchrony.deterministic and evaluates(cfg):
        yield Reason(
            "async.deterministic does not support evaluation, which draws from the generator that samples "
            "rollouts; use trainer.test_freq=-1 and trainer.val_before_train=false",
            "trainer.test_freq=-1 trainer.val_before_train=false",
        )
    precision = value_at(cfg, f"{ACTOR}.fsdp_config.mixed_precision.param_dtype")
    if asynchrony.streamer.enabled and str(precision) in ("fp16", "float16"):
        yield Reason(
            f"async.streamer does not support {ACTOR}.fsdp_config.mixed_precision.param_dtype={precision}: "
            "its scaler may skip a step; use bf16",
            f"{ACTOR}.fsdp_config.mixed_precision.param_dtype=bf16",
        )
    if evaluates(cfg) and not isinstance(value_at(cfg, "env.eval"), Mapping):
        yield Reason(
            "trainer.test_freq or trainer.val_before_train asks for evaluation, and there is no env.eval; "
            "add that block, or use trainer.test_freq=-1 and trainer.val_before_train=false",
            "trainer.test_freq=-1 trainer.val_before_train=false",
        )
    yield from cannot_take_on(section(cfg, "train"), asynchrony)
    yield from cannot_reset_ahead(section(cfg, "train"), asynchrony)
    mode = value_at(cfg, "trainer.resume_mode")
    if mode not in ("auto", "resume_path", "disable"):
        yield Reason(f"trainer.resume_mode={mode!r} must be auto, resume_path or disable; nearest: auto")
    if value_at(cfg, "vla.ratio_level") not in (None, "token", "action", "chunk"):
        yield Reason(
            f"vla.ratio_level={value_at(cfg, 'vla.ratio_level')!r} must be token, action or chunk; "
            "nearest: chunk",
            "vla.ratio_level=chunk",
        )
