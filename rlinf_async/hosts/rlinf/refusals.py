"""RLinf features that an asynchronous level cannot serve, refused by name before Ray starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.nested import lookup
from rlinf_async.hosts.rlinf.settings import LOSSES

SELF_SCORING_MODELS = frozenset({"gr00t", "gr00t_n1d6", "gr00t_n1d7", "abot_m0"})
"""Models that replace the stored log-probabilities by their own during training."""


@dataclass(frozen=True)
class Refusal:
    """A setting, the levels that cannot serve it, and what to do instead."""

    key: str
    unless: Callable[[Any], bool]
    levels: tuple[str, ...]
    mend: str


def _off(value: Any) -> bool:
    return not value


ALL = ("train", "rollout", "streamer")
REFUSALS = (
    Refusal("reward.use_reward_model", _off, ALL, "set it to false: rewards come from the simulator"),
    Refusal("actor.enable_offload", _off, ALL, "set it to false: learner and rollouts run at the same time"),
    Refusal(
        "rollout.enable_offload", _off, ALL, "set it to false: learner and rollouts run at the same time"
    ),
    Refusal(
        "env.train.enable_offload", _off, ALL, "set it to false: learner and rollouts run at the same time"
    ),
    Refusal(
        "env.eval.enable_offload", _off, ALL, "set it to false: evaluation shares the workers with training"
    ),
    Refusal("runner.use_training_pipeline", _off, ALL, "remove it: async.streamer takes its place"),
    Refusal("runner.enable_decoupled_mode", _off, ALL, "remove it: async.rollout takes its place"),
    Refusal("runner.overlap_env_bootstrap", _off, ALL, "remove it: shards already reset while others work"),
    Refusal("rollout.collect_transitions", _off, ALL, "set it to false: only on-policy losses are supported"),
    Refusal(
        "rollout.collect_prev_infos",
        lambda value: value in (None, True),
        ALL,
        "set it to true: the learner needs what the policy thought of its actions",
    ),
    Refusal("rollout.expert_model", _off, ALL, "remove it: DAgger is not supported"),
    Refusal(
        "cluster.profiling.enabled",
        _off,
        ALL,
        "set it to false: profiling opens windows per synchronous step",
    ),
    Refusal(
        "rollout.enable_cuda_graph",
        _off,
        ("rollout",),
        "set it to false: captured graphs need one batch size",
    ),
    Refusal(
        "runner.weight_sync_interval",
        lambda value: value in (None, 1),
        ("train",),
        "set it to 1: staleness is bounded by async.train.max_staleness",
    ),
)


def refuse_unsupported(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> None:
    """Raise for the first setting of `cfg` (plain data) that an enabled level cannot serve.

    Raises:
        ValueError: names the setting, the level and the remedy.
    """
    on = [name for name, enabled in asynchrony.levels.items() if enabled]
    for refusal in REFUSALS:
        value = lookup(cfg, refusal.key)
        level = next((name for name in refusal.levels if name in on), None)
        if level is not None and not refusal.unless(value):
            raise ValueError(f"async.{level} does not support {refusal.key}={value!r}; {refusal.mend}")
    if on:
        _refuse_algorithm(cfg, asynchrony)


def _refuse_algorithm(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> None:
    loss, model = cfg["algorithm"]["loss_type"], str(cfg["actor"]["model"]["model_type"])
    if loss not in LOSSES:
        raise ValueError(
            f"algorithm.loss_type={loss!r} has no off-policy correction; asynchronous runs support "
            f"{', '.join(LOSSES)}, or async.mode=off"
        )
    if cfg["actor"].get("training_backend", "fsdp") != "fsdp":
        raise ValueError(
            f"actor.training_backend={cfg['actor']['training_backend']!r} is not supported; use fsdp, or "
            "async.mode=off"
        )
    if asynchrony.correction == "vtrace" and cfg["algorithm"]["adv_type"] != "gae":
        raise ValueError(
            f"async.train.correction=vtrace estimates advantages with a critic, which algorithm.adv_type="
            f"{cfg['algorithm']['adv_type']!r} has not; use correction=decoupled or tis"
        )
    if asynchrony.deterministic and cfg["runner"].get("val_check_interval", -1) > 0:
        raise ValueError(
            "async.deterministic does not support runner.val_check_interval="
            f"{cfg['runner']['val_check_interval']}: evaluation draws from the generator that samples "
            "rollouts; set it to -1 and evaluate checkpoints"
        )
    if asynchrony.off_policy and model in SELF_SCORING_MODELS:
        raise ValueError(
            f"async.train cannot correct actor.model.model_type={model!r}, which scores old actions anew "
            "while it trains; use async.train.enabled=false (levels 2 and 3 work)"
        )
