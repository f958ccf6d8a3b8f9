"""On-policy distillation in RLinf's config: a student that trains on a teacher's scores of its own tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import lookup, shortened
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.losses import DISTILLATION
from rlinf_async.hosts.rlinf.masks import UNMASKING_KEYS
from rlinf_async.hosts.rlinf.models import TOKEN_MODELS

TEACHER_KEY = "rollout.expert_model"
"""The section of the teacher, with the keys in which it differs from `actor.model`."""
ALGORITHM_KEYS = ("algorithm.loss_type", "algorithm.adv_type")
WHOLE_BATCH = "the teacher scores a batch when it is complete"


def is_distilled(cfg: Mapping[str, Any]) -> bool:
    """Return True if `cfg` (plain data) asks for on-policy distillation, by its loss or its advantages."""
    return any(lookup(cfg, key) == DISTILLATION for key in ALGORITHM_KEYS)


def missing_parts(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason if the installed RLinf has no distillation, or if `cfg` has only half of it."""
    if not borrowed.is_here("compute_opd_actor_loss"):
        key = next(key for key in ALGORITHM_KEYS if lookup(cfg, key) == DISTILLATION)
        yield Reason(
            f"{key}={DISTILLATION!r} is on-policy distillation, which this RLinf does not have: use RLinf's "
            "main branch of 22 August 2026 or newer"
        )
        return
    for key in ALGORITHM_KEYS:
        if (value := lookup(cfg, key)) != DISTILLATION:
            yield Reason(
                f"{key}={shortened(value)} does not go with on-policy distillation, which is both a loss and "
                f"an advantage of RLinf; set {key}={DISTILLATION}",
                f"{key}={DISTILLATION}",
            )


def teacher_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the reasons why RLinf's actor would not distil, as it finds out after its first rollouts."""
    if not lookup(cfg, TEACHER_KEY):
        yield Reason(
            f"on-policy distillation needs a teacher, and there is no {TEACHER_KEY}; set "
            f"{TEACHER_KEY}.model_path to its checkpoint"
        )
    if (model := lookup(cfg, "actor.model.model_type")) not in TOKEN_MODELS:
        yield Reason(
            f"on-policy distillation does not support actor.model.model_type={model}: RLinf's teacher scores "
            f"the tokens of {' and '.join(sorted(TOKEN_MODELS))}; use one of them"
        )
    for key, wrong, right in (
        ("algorithm.logprob_type", lambda level: level != "token_level", "token_level"),
        ("algorithm.reward_type", lambda level: level == "chunk_level", "action_level"),
    ):
        if wrong(value := lookup(cfg, key)):
            yield Reason(
                f"on-policy distillation rewards every token, and {key}={value} sums over tokens; set "
                f"{key}={right}",
                f"{key}={right}",
            )
    for key in UNMASKING_KEYS:
        if lookup(cfg, key):
            yield Reason(
                f"on-policy distillation with {key}=true: RLinf's loss needs a mask of the steps after an "
                f"episode's end, and there is none; set {key}=false",
                f"{key}=false",
            )


def lag_remarks(asynchrony: AsyncConfig) -> Iterator[str]:
    """Yield a remark on what distillation from older samples computes."""
    if asynchrony.correction != "none":
        yield (
            "on-policy distillation: the first optimizer step of a batch follows the gradient of the reverse "
            "KL to the teacher, in the states that the older policy has visited; later steps are as in "
            "RLinf's loop"
        )
    elif asynchrony.off_policy:
        yield (
            "on-policy distillation without a correction: tokens keep the reward that the older policy's "
            "log-probability gives them, without a bound; async.train.correction=decoupled gives them the "
            "present one"
        )
