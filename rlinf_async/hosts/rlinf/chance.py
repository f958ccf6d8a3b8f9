"""The random draws of RLinf's models for the samples of one forward pass, as far as they were examined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.exactness import OWN_MODELS

PER_SAMPLE = frozenset({"mlp_policy", "cnn_policy", "openvla", "openvla_oft", *OWN_MODELS})
"""Models that draw an action for every sample by itself: a Gaussian's noise, or tokens."""
ONE_STEP = frozenset(
    {
        "openpi",
        "openpi_rlinf",
        "evo1",
        "gr00t",
        "gr00t_n1d6",
        "gr00t_n1d7",
        "abot_m0",
        "dexbotic_pi",
        "dexbotic_dm0",
        "lingbotvla",
        "tiny_pi0",
    }
)
"""Models that draw one denoise step for a whole forward pass, unless their log-probabilities are joint."""
STARVLA_ONE_STEP = ("gr00t", "pi", "dual")
"""Parts of the names of StarVLA frameworks whose head draws one step for all samples, too."""
SHARED_STEP = "samples of one forward pass share a denoise step"
STEP_COUNT_KEYS = ("num_steps", "denoising_steps")
"""How models call the number of their denoise steps: in a section of their own kind, or beside it."""


def shared_chance(cfg: Mapping[str, Any]) -> str | None:
    """Return what samples of one forward pass share besides the weights; "" for nothing, None where it was
    not examined.
    """
    model = lookup(cfg, "actor.model") or {}
    kind = str(model.get("model_type"))
    if kind == "starvla":
        return _of_starvla(str(lookup(model, "starvla.framework_name") or "").lower())
    if kind == "openpi" and "fast" in str(lookup(model, "openpi.config_name")):
        return None  # which gives tokens one after another
    if kind in PER_SAMPLE:
        return ""
    if kind not in ONE_STEP:
        return None
    return "" if is_joint(model) else SHARED_STEP


def is_joint(model: Mapping[str, Any]) -> bool:
    """Return True if log-probabilities are of all denoise steps; `model` is the section of the model."""
    kind = str(model.get("model_type"))
    places = ("joint_logprob", f"{kind}.joint_logprob", "rl_head_config.joint_logprob")
    return kind in ONE_STEP and any(lookup(model, place) is True for place in places)


def _of_starvla(framework: str) -> str | None:
    """By the name of the framework, which says which action head a checkpoint has."""
    if framework.endswith("oft"):
        return ""
    return SHARED_STEP if framework.endswith(STARVLA_ONE_STEP) else None


def scored_by(cfg: Mapping[str, Any]) -> str:
    """What importance weights are of, where the model scores a part of an action; else empty.

    Without a number in the config the checkpoint has it.
    """
    model = lookup(cfg, "actor.model") or {}
    joint = is_joint(model)
    if not joint and shared_chance(cfg) != SHARED_STEP:
        return ""
    kind = str(model.get("model_type"))
    found = [lookup(model, f"{place}{name}") for place in (f"{kind}.", "") for name in STEP_COUNT_KEYS]
    steps = next((str(value) for value in found if value is not None), "K")
    if joint:
        parts = str(int(steps) + 1) if steps.isdigit() else "(K + 1)"
        return f"of the mean over {steps} denoise steps and their noise, which sees 1 / {parts} of a lag"
    return f"of one of {steps} denoise steps, which sees about 1 / {steps} of a lag" if steps != "1" else ""
