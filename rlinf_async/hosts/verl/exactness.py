"""Whether each level computes what the loop with all levels off would, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.hosts.explanation import EXACT, train_exactness
from rlinf_async.hosts.verl.block import given
from rlinf_async.hosts.verl.estimators import WITH_VALUES, streams
from rlinf_async.hosts.verl.policy_losses import SELECTING
from rlinf_async.hosts.verl.settings import VerlSettings

ACTOR = "actor_rollout_ref.actor"


def exactness(cfg: Mapping[str, Any], settings: VerlSettings) -> dict[str, str]:
    """`exact`, `approximate (why; mend)` or `off`, for each level of a plain config."""
    return {
        "train": train_exactness(settings.asynchrony),
        "rollout": _rollout(settings),
        "streamer": _streamer(cfg, settings),
    }


def _rollout(settings: VerlSettings) -> str:
    if not settings.asynchrony.rollout.enabled:
        return "off"
    return f"{EXACT} (the same trajectories in distribution; random numbers are drawn in another order)"


def _streamer(cfg: Mapping[str, Any], settings: VerlSettings) -> str:
    if not settings.asynchrony.streamer.enabled:
        return "off"
    if not settings.streams:
        why = "normalization is deferred" if streams(settings.estimator) else settings.estimator
        return f"{EXACT} ({why}: the learner waits for the whole batch before it steps)"
    reasons = []
    if settings.estimator in WITH_VALUES:
        reasons.append(
            "advantages are normalised by the batch before; async.streamer.normalization=deferred is exact"
        )
    if settings.steps_while_streaming:
        whole = given(cfg, "data.train_batch_size")
        reasons.append(
            f"the {settings.optimizer_steps} optimizer steps of the first pass are cut in order of arrival; "
            f"async.streamer.steps=spread or {ACTOR}.ppo_mini_batch_size={whole} is exact"
        )
    if (mode := given(cfg, f"{ACTOR}.policy_loss.loss_mode")) in SELECTING:
        reasons.append(f"{mode} chooses within a micro-batch, of which arrival decides who is in it")
    if reasons:
        return f"approximate ({'; '.join(reasons)})"
    if settings.spreads_steps:
        return f"{EXACT} (every optimizer step has an equal share of every rollout, drawn at random)"
    return f"{EXACT} (one optimizer step per pass over the batch, sums divided once)"
