"""RLinf features that an asynchronous level cannot serve, named before Ray starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.kit.keys import Key, shortened
from rlinf_async.hosts.kit.kinds import Block, Flag, Whole
from rlinf_async.hosts.reasons import Reason, refuse
from rlinf_async.hosts.rlinf import entropy
from rlinf_async.hosts.rlinf.reward_section import unserved_rewards
from rlinf_async.hosts.rlinf.settings import ON_POLICY_LOSSES
from rlinf_async.hosts.tasks import cannot_take_on

TOKEN_MODELS = frozenset({"openvla", "openvla_oft"})
"""Models that sample actions as tokens."""

EVALUATED_MODELS = frozenset({"molmoact2"})
"""Models whose class in RLinf does not train."""

WITHOUT_ADAPTERS = frozenset({"cnn_policy", "mlp_policy"})
"""Models without a layer of the names that RLinf's `get_model` gives new adapters to."""

ADVANTAGE_TYPES = ("gae", "grpo")
"""RLinf's `algorithm.adv_type` of PPO and of GRPO."""

OTHER_ALGORITHMS = {
    "embodied_sac": "SAC",
    "embodied_dagger": "DAgger",
    "embodied_nft": "NFT",
    "offline_iql": "IQL",
    "opd": "on-policy distillation",
    "rlt_ac": "RLT",
    "rlt_td3": "RLT",
}
"""Losses of RLinf that are no policy gradient on fresh rollouts, by the names that users know."""


def _scores_old_tokens(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return asynchrony.off_policy and lookup(cfg, "actor.model.model_type") in TOKEN_MODELS


def _refused(name: str, remedy: str, override: str, **more: Any) -> Key:
    return Key(name=name, fate="refused", remedy=remedy, override=override, **more)


def _false(name: str, why: str, **more: Any) -> Key:
    return _refused(name, f"set it to false: {why}", f"{name}=false", kind=Flag(), **more)


def _true(name: str, why: str) -> Key:
    remedy, serves = f"set it to true: {why}", (None, True)
    return _refused(name, remedy, f"{name}=true", kind=Flag(), serves=lambda value: value in serves)


def _absent(name: str, why: str, **more: Any) -> Key:
    return _refused(name, f"remove it: {why}", f"~{name}", **more)


REFUSALS = (
    _absent("runner.use_training_pipeline", "async.streamer takes its place", kind=Flag()),
    _absent("runner.enable_decoupled_mode", "async.rollout takes its place", kind=Flag()),
    _false("rollout.collect_transitions", "only on-policy losses are supported"),
    _true("rollout.collect_prev_infos", "the learner needs what the policy thought of its actions"),
    _absent("rollout.expert_model", "DAgger is not supported"),
    _absent(
        "cluster.profiling",
        "profiling opens windows per synchronous step",
        kind=Block(),
        serves=lambda block: not block or not block.get("enabled", True),
    ),
    _false("env.train.smooth_intervene", "every action is asked of the policy"),
    _false(
        "cluster.net_emulation.enabled", "actions and observations travel on ways that it does not slow down"
    ),
    _true("rollout.collect_final_values", "advantages are estimated with the values of final observations"),
    _refused(
        "runner.weight_sync_interval",
        "set it to 1: weights are published after every step, and async.train.max_staleness bounds their age",
        "runner.weight_sync_interval=1",
        kind=Whole(1),
        serves=lambda value: value in (None, 1),
    ),
    _refused(
        "rollout.sampling_params.top_k",
        "set it to -1: an older policy's token outside of the newer one's top has no log-probability",
        "rollout.sampling_params.top_k=-1",
        kind=Whole(-1),
        serves=lambda top_k: top_k is None or top_k <= 0,
        levels=("train",),
        where=_scores_old_tokens,
    ),
)


def unsupported(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> dict[Key, tuple[str, ...]]:
    """Return settings of `cfg` (plain data) that levels which are on do not support, with those levels."""
    reasons = {}
    for refusal in REFUSALS:
        levels = tuple(level for level in refusal.levels if asynchrony.levels[level])
        if levels and refusal.where(cfg, asynchrony) and not refusal.allows(lookup(cfg, refusal.name)):
            reasons[refusal] = levels
    return reasons


def refuse_other_algorithms(cfg: Mapping[str, Any]) -> None:
    """See that `cfg` trains by PPO or GRPO; the keys and sizes of others are others, and no check fits them.

    Raises:
        RefusedError: it does not.
    """
    loss, advantage = lookup(cfg, "algorithm.loss_type"), lookup(cfg, "algorithm.adv_type")
    if str(loss) in ON_POLICY_LOSSES and str(advantage) in ADVANTAGE_TYPES:
        return
    key, value = ("adv_type", advantage) if str(loss) in ON_POLICY_LOSSES else ("loss_type", loss)
    known = OTHER_ALGORITHMS.get(str(value), "none of these")
    other = Reason(
        f"algorithm.{key}={shortened(value)} is {known}; rlinf-async makes PPO and GRPO "
        f"asynchronous (loss_type {', '.join(ON_POLICY_LOSSES)}, with adv_type "
        f"{' or '.join(ADVANTAGE_TYPES)}); "
        "use async.mode=off"
    )
    refuse([other])


def contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield settings that no level supports, and settings of the `async` block that do not go with `cfg`."""
    yield from unserved_rewards(cfg)
    if (model := lookup(cfg, "actor.model.model_type")) in EVALUATED_MODELS:
        yield Reason(
            f"actor.model.model_type={model} can be evaluated by RLinf, and not trained; use "
            "runner.only_eval=true",
            "runner.only_eval=true",
        )
    yield from _unadapted(lookup(cfg, "actor.model") or {})
    backend = lookup(cfg, "actor.training_backend")
    if backend not in (None, "fsdp"):
        yield Reason(f"actor.training_backend={backend!r} is not supported; use fsdp, or async.mode=off")
    train = lookup(cfg, "env.train") or {}
    yield from cannot_take_on(train, asynchrony)
    yield from entropy.rescaled(cfg, asynchrony)
    interval = lookup(cfg, "runner.val_check_interval") or -1
    if asynchrony.deterministic and interval > 0:
        yield Reason(
            f"async.deterministic does not support runner.val_check_interval={interval}: evaluation draws "
            "from the generator that samples rollouts; set it to -1 and evaluate checkpoints",
            "runner.val_check_interval=-1",
        )


def _unadapted(model: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if RLinf's `get_model` would end in each worker for want of a layer or a rank."""
    if not model.get("is_lora") or model.get("lora_path") is not None:
        return
    if (name := model.get("model_type")) in WITHOUT_ADAPTERS:
        yield Reason(
            f"actor.model.is_lora=true does not go with actor.model.model_type={name}: it has no layer that "
            "RLinf's adapters are for; set it to false",
            "actor.model.is_lora=false",
        )
    elif model.get("lora_rank") is None:
        yield Reason(
            "actor.model.is_lora=true needs actor.model.lora_rank; set it, or actor.model.lora_path",
            "++actor.model.lora_rank=32",
        )
