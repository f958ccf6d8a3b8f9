"""RLinf features that an asynchronous level cannot serve, named before Ray starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.config import LEVELS, AsyncConfig
from rlinf_async.core.nested import lookup
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.resets import cannot_reset_ahead
from rlinf_async.hosts.rlinf.offload import overlap
from rlinf_async.hosts.rlinf.settings import LOSSES
from rlinf_async.hosts.tasks import cannot_take_on

TOKEN_MODELS = frozenset({"openvla", "openvla_oft"})
"""Models that sample actions as tokens."""

ADVANTAGES = ("gae", "grpo")
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


def _always(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return True


def _scores_old_tokens(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return asynchrony.off_policy and lookup(cfg, "actor.model.model_type") in TOKEN_MODELS


def _resets_ahead(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return asynchrony.rollout.reset_ahead


def _resets_ahead_in_turn(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    """Where levels let the others work beside simulators, these are not offloaded in any case."""
    return asynchrony.rollout.reset_ahead and not overlap(asynchrony)


@dataclass(frozen=True)
class Refusal:
    """A setting, the levels that cannot serve it, and what to do instead."""

    key: str
    unless: Callable[[Any], bool]
    levels: tuple[str, ...]
    remedy: str
    override: str = ""
    """`remedy` as a Hydra override, where it is one."""
    where: Callable[[Mapping[str, Any], AsyncConfig], bool] = _always
    """The runs with one of `levels` on that it concerns."""

    def says(self, value: object) -> str:
        """That it does not support the setting, and the remedy; whoever it is comes before."""
        return f"does not support {self.key}={value!r}; {self.remedy}"


def _off(value: object) -> bool:
    return not value


def _false(key: str, why: str, levels: tuple[str, ...] = LEVELS) -> Refusal:
    return Refusal(key, _off, levels, f"set it to false: {why}", f"{key}=false")


def _absent(key: str, why: str) -> Refusal:
    return Refusal(key, _off, LEVELS, f"remove it: {why}", f"~{key}")


REFUSALS = (
    _absent("runner.use_training_pipeline", "async.streamer takes its place"),
    _absent("runner.enable_decoupled_mode", "async.rollout takes its place"),
    _false("rollout.collect_transitions", "only on-policy losses are supported"),
    Refusal(
        "rollout.collect_prev_infos",
        lambda value: value in (None, True),
        LEVELS,
        "set it to true: the learner needs what the policy thought of its actions",
        "rollout.collect_prev_infos=true",
    ),
    _absent("rollout.expert_model", "DAgger is not supported"),
    Refusal(
        "cluster.profiling",
        lambda block: not block or not block.get("enabled", True),
        LEVELS,
        "remove it: profiling opens windows per synchronous step",
        "~cluster.profiling",
    ),
    _false("env.train.smooth_intervene", "every action is asked of the policy"),
    _false(
        "cluster.net_emulation.enabled", "actions and observations travel on ways that it does not slow down"
    ),
    Refusal(
        "rollout.collect_final_values",
        lambda value: value in (None, True),
        LEVELS,
        "set it to true: advantages are estimated with the values of final observations",
        "rollout.collect_final_values=true",
    ),
    Refusal(
        "runner.weight_sync_interval",
        lambda value: value in (None, 1),
        LEVELS,
        "set it to 1: weights are published after every step, and async.train.max_staleness bounds their age",
        "runner.weight_sync_interval=1",
    ),
    Refusal(
        "rollout.sampling_params.top_k",
        lambda top_k: top_k is None or top_k <= 0,
        ("train",),
        "set it to -1: an older policy's token outside of the newer one's top has no log-probability",
        "rollout.sampling_params.top_k=-1",
        where=_scores_old_tokens,
    ),
    Refusal(
        "env.train.enable_offload",
        _off,
        ("rollout",),
        "set it to false, or async.rollout.reset_ahead: simulators that have left their accelerator "
        "cannot be reset",
        "env.train.enable_offload=false",
        where=_resets_ahead_in_turn,
    ),
    *(
        Refusal(
            key,
            _off,
            ("rollout",),
            "set it to false, or async.rollout.reset_ahead: two sets of simulators would write files of the "
            "same names",
            f"{key}=false",
            where=_resets_ahead,
        )
        for key in ("env.train.video_cfg.save_video", "env.train.data_collection.enabled")
    ),
)


def unsupported(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> dict[Refusal, tuple[str, ...]]:
    """What levels that are on do not support of `cfg` (plain data), and which of them."""
    reasons = {}
    for refusal in REFUSALS:
        levels = tuple(level for level in refusal.levels if asynchrony.levels[level])
        if levels and refusal.where(cfg, asynchrony) and not refusal.unless(lookup(cfg, refusal.key)):
            reasons[refusal] = levels
    return reasons


def other_algorithm(cfg: Mapping[str, Any]) -> Reason | None:
    """That `cfg` trains by anything but PPO and GRPO: then nothing else matters."""
    loss, advantage = lookup(cfg, "algorithm.loss_type"), lookup(cfg, "algorithm.adv_type")
    if loss in LOSSES and advantage in ADVANTAGES:
        return None
    key, value = ("adv_type", advantage) if loss in LOSSES else ("loss_type", loss)
    return Reason(
        f"algorithm.{key}={value!r} is {OTHER_ALGORITHMS.get(value, 'none of these')}; rlinf-async makes PPO "
        f"and GRPO asynchronous (loss_type {', '.join(LOSSES)}, with adv_type {' or '.join(ADVANTAGES)}); "
        "use async.mode=off"
    )


def contradictions(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> Iterator[Reason]:
    """What no level supports, and settings of the `async` block that do not go with `cfg`."""
    advantage = lookup(cfg, "algorithm.adv_type")
    if lookup(cfg, "reward.use_reward_model") and not lookup(cfg, "reward.standalone_realworld"):
        # Of the other kind, the environment asks its reward model by itself.
        yield Reason(
            "async does not support reward.use_reward_model=True, the reward model "
            f"{lookup(cfg, 'reward.model.model_type')!r}; set it to false, so that rewards come from the "
            "simulator, or use async.mode=off",
            "reward.use_reward_model=false",
        )
    backend = lookup(cfg, "actor.training_backend")
    if backend not in (None, "fsdp"):
        yield Reason(f"actor.training_backend={backend!r} is not supported; use fsdp, or async.mode=off")
    if asynchrony.correction == "vtrace" and advantage != "gae":
        yield Reason(
            "async.train.correction=vtrace estimates advantages with a critic, which algorithm.adv_type="
            f"{advantage!r} has not; use correction=decoupled or tis",
            "async.train.correction=decoupled",
        )
    train = lookup(cfg, "env.train") or {}
    yield from cannot_take_on(train, asynchrony)
    yield from cannot_reset_ahead(train, asynchrony)
    interval = lookup(cfg, "runner.val_check_interval") or -1
    if asynchrony.deterministic and interval > 0:
        yield Reason(
            f"async.deterministic does not support runner.val_check_interval={interval}: evaluation draws "
            "from the generator that samples rollouts; set it to -1 and evaluate checkpoints",
            "runner.val_check_interval=-1",
        )
