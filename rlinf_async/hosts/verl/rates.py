"""The settings of veRL's learning rate schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHAPE_KEYS = ("total_training_steps", "num_cycles", "min_lr_ratio", "zero_indexed_step")
"""Keys of `actor_rollout_ref.actor.optim` on which every schedule but the constant one depends."""


def rate_settings(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the schedule in veRL's `actor_rollout_ref.actor.optim`, as its engine reads
    them; `total_training_steps` has been filled in.

    Runs with equal settings and the same `lr` have the same rates at the same steps.
    """
    kind = str(optim.get("warmup_style") or optim.get("lr_scheduler_type") or "constant")
    warm_up = int(optim.get("lr_warmup_steps") or 0)
    if warm_up <= 0:
        warm_up = int(float(optim.get("lr_warmup_steps_ratio") or 0.0) * optim["total_training_steps"])
    shape = {} if kind == "constant" else {key: optim.get(key) for key in SHAPE_KEYS}
    return {"lr_scheduler_type": kind, "steps of warm-up": warm_up, **shape}
