"""What RLinf's models score of an action, by their config: for `explain`; a run reads it off its samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.nested import lookup
from rlinf_async.core.weight_bounds import MAX_WEIGHT_OF_ALL_STEPS, MAX_WEIGHT_OF_ONE_STEP
from rlinf_async.hosts.rlinf.chance import TOGETHER, is_joint, shared_chance

STEPS = ("num_steps", "denoising_steps")
"""How models call the number of their denoise steps: in a section of their own kind, or beside it."""


def scored_by(cfg: Mapping[str, Any]) -> str:
    """How importance weights make up for what the model does not score; empty where it scores actions.

    Without a number in the config the checkpoint has it.
    """
    model = lookup(cfg, "actor.model") or {}
    joint = is_joint(model)
    if not joint and shared_chance(cfg) != TOGETHER:
        return ""
    kind = str(model.get("model_type"))
    found = [lookup(model, f"{place}{name}") for place in (f"{kind}.", "") for name in STEPS]
    steps = next((str(value) for value in found if value is not None), "K")
    if joint:
        more = f"{int(steps) + 1}" if steps.isdigit() else "(K + 1)"
        said = f"w^{more}, at most {MAX_WEIGHT_OF_ALL_STEPS:g}: this model scores the mean over its {steps} "
        return f"{said}denoise steps and the noise they begin with"
    if steps == "1":
        return ""
    said = f"1 + {steps} (w - 1), between 0 and {MAX_WEIGHT_OF_ONE_STEP:g}: "
    return f"{said}this model scores one of {steps} denoise steps"
