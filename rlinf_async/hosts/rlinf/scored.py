"""What RLinf's models score of an action, by their config: for `explain`; a run reads it off its samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.nested import lookup
from rlinf_async.hosts.rlinf.chance import SHARED_STEP, is_joint, shared_chance

STEPS = ("num_steps", "denoising_steps")
"""How models call the number of their denoise steps: in a section of their own kind, or beside it."""


def scored_by(cfg: Mapping[str, Any]) -> str:
    """What importance weights are of, where the model scores a part of an action; else empty.

    Without a number in the config the checkpoint has it.
    """
    model = lookup(cfg, "actor.model") or {}
    joint = is_joint(model)
    if not joint and shared_chance(cfg) != SHARED_STEP:
        return ""
    kind = str(model.get("model_type"))
    found = [lookup(model, f"{place}{name}") for place in (f"{kind}.", "") for name in STEPS]
    steps = next((str(value) for value in found if value is not None), "K")
    if joint:
        parts = str(int(steps) + 1) if steps.isdigit() else "(K + 1)"
        return f"of the mean over {steps} denoise steps and their noise, which sees 1 / {parts} of a lag"
    return f"of one of {steps} denoise steps, which sees about 1 / {steps} of a lag" if steps != "1" else ""
