"""On-policy distillation in RLinf's config: a student that trains on a teacher's scores of its own tokens."""

from __future__ import annotations

from collections.abc import Iterator

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import shortened
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf import tree
from rlinf_async.hosts.rlinf.losses import DISTILLATION
from rlinf_async.hosts.rlinf.scoring import TOKEN_MODELS
from rlinf_async.hosts.rlinf.view import RLinfView

TEACHER_KEY = "rollout.expert_model"
"""The section of the teacher, with the keys in which it differs from `actor.model`."""
WHOLE_BATCH = "the teacher scores a batch when it is complete"


def missing_parts(view: RLinfView) -> Iterator[Reason]:
    """Yield a reason if the installed RLinf has no distillation, or if a config has only half of it."""
    values = {"algorithm.loss_type": view.loss, "algorithm.adv_type": view.advantage}
    if not tree.is_defined("compute_opd_actor_loss"):
        key = next(key for key, value in values.items() if value == DISTILLATION)
        yield Reason(
            f"{key}={DISTILLATION!r} is on-policy distillation, which this RLinf does not have: use RLinf's "
            "main branch of 22 August 2026 or newer"
        )
        return
    for key, value in values.items():
        if value != DISTILLATION:
            yield Reason(
                f"{key}={shortened(value)} does not go with on-policy distillation, which is both a loss and "
                f"an advantage of RLinf; set {key}={DISTILLATION}",
                f"{key}={DISTILLATION}",
            )


def teacher_reasons(view: RLinfView) -> Iterator[Reason]:
    """Yield the reasons why RLinf's actor would not distil, as it finds out after its first rollouts."""
    if not view.teacher:
        yield Reason(
            f"on-policy distillation needs a teacher, and there is no {TEACHER_KEY}; set "
            f"{TEACHER_KEY}.model_path to its checkpoint"
        )
    if view.model_type not in TOKEN_MODELS:
        yield Reason(
            f"on-policy distillation does not support actor.model.model_type={view.model_type}: RLinf's "
            f"teacher scores the tokens of {' and '.join(sorted(TOKEN_MODELS))}; use one of them"
        )
    sums = view.ratio_level != "token_level", view.reward_type == "chunk_level"
    for is_summed, key, value, right in (
        (sums[0], "algorithm.logprob_type", view.ratio_level, "token_level"),
        (sums[1], "algorithm.reward_type", view.reward_type, "action_level"),
    ):
        if is_summed:
            yield Reason(
                f"on-policy distillation rewards every token, and {key}={value} sums over tokens; set "
                f"{key}={right}",
                f"{key}={right}",
            )
    for key in view.unmasking_keys:
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
