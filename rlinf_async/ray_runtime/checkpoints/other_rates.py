"""The settings of learning rates in a checkpoint, compared with those of the run that goes on from it.

A schedule counts steps, and does not store its own settings. If a cosine takes as many steps as its run, a
longer run stretches it, and goes on at another rate than that of the last step before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import shortened
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import facts_of

RATES_FACT = "rates"
"""The name of the settings in the list of a checkpoint."""


def other_rates(checkpoint: Path, step: int, rate_settings: Mapping[str, Any]) -> str:
    """Return a sentence if the run that wrote `checkpoint`, after `step`, had other settings of learning
    rates than `rate_settings`; "" if it had the same, or does not say."""
    before = facts_of(checkpoint).get(RATES_FACT)
    if not isinstance(before, Mapping) or before == rate_settings:
        return ""
    differences = ", ".join(
        f"{name}: {shortened(before.get(name))}, now {shortened(rate_settings.get(name))}"
        for name in dict.fromkeys([*rate_settings, *before])
        if before.get(name) != rate_settings.get(name)
    )
    return (
        f"the earlier run had another learning-rate schedule ({differences}): rates after step {step} are "
        "not those of one longer run"
    )
