"""The settings of RLinf's learning rate schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHAPE_KEYS = ("total_training_steps", "num_cycles", "min_lr", "min_lr_rate")
"""Keys of `actor.optim` on which every schedule but the constant one depends."""


def rate_settings(optim: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the schedule in RLinf's `actor.optim`, as its `build_lr_scheduler` reads them.

    Runs with equal settings and the same `lr` have the same rates at the same steps.
    """
    kind = str(optim.get("lr_scheduler", "constant"))
    warm_up = int(optim.get("lr_warmup_steps", -1))  # no null, as `write_nulls` has replaced it
    if warm_up < 0:
        share = float(optim.get("lr_warmup_steps_ratio") or 0.0)
        warm_up = int(share * (optim.get("total_training_steps") or 0))
    shape = {} if kind == "constant" else {key: optim.get(key) for key in SHAPE_KEYS}
    return {"lr_scheduler": kind, "steps of warm-up": warm_up, **shape}
