"""Tells for each level if it computes what the loop with all levels off would, and if not, why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.nested import lookup
from rlinf_async.hosts.exactness import own_chance, rollout_exactness, streamer_exactness, train_exactness
from rlinf_async.hosts.verl.estimators import streams
from rlinf_async.hosts.verl.policy_losses import SELECTING_LOSSES
from rlinf_async.hosts.verl.settings import VerlSettings

ACTOR_SECTION = "actor_rollout_ref.actor"


def exactness(cfg: Mapping[str, Any], settings: VerlSettings) -> dict[str, str]:
    """`exact`, `approximate (why; what is exact)`, `not examined (why)` or `off`, for each level."""
    mode = lookup(cfg, f"{ACTOR_SECTION}.policy_loss.loss_mode")
    model = lookup(cfg, "vla.model.model_type")
    selects = f"{mode} chooses within a micro-batch, of which arrival decides who is in it"
    return {
        "train": train_exactness(settings.asynchrony),
        "rollout": rollout_exactness(settings.asynchrony, model=str(model), shares=own_chance(model)),
        "streamer": streamer_exactness(
            settings,
            deferred="normalization is deferred" if streams(settings.estimator) else settings.estimator,
            more=[selects] if mode in SELECTING_LOSSES else [],
        ),
    }
