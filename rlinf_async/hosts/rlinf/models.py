"""RLinf's models: facts about each `model_type`, the scoring of actions, and models of entry points."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.entry_points import MODELS_GROUP, OWN_MODELS, names_of
from rlinf_async.hosts.rlinf.sources import sources_of

EVALUATED_MODELS = frozenset({"fastwam", "molmoact2"})
"""Models that RLinf can evaluate, and train by imitation at most: their answers have no log-probabilities."""

UNSERVED_MODELS = {
    "pi0_fast": "it scores a sequence of tokens of any length (algorithm.logprob_type=sequence_token_level)",
}
"""Models that are not supported with any level, and the known obstacle."""

WITHOUT_ADAPTERS = frozenset({"cnn_policy", "mlp_policy"})
"""Models without any of the layers that get adapters from RLinf's `get_model`."""


PACKAGE_OF_MODEL = {
    "abot_m0": "ABot",
    "dexbotic_dm0": "dexbotic",
    "dexbotic_pi": "dexbotic",
    "dreamzero": "groot",
    "gr00t": "gr00t",
    "gr00t_n1d6": "gr00t",
    "gr00t_n1d7": "gr00t",
    "lingbotvla": "lingbotvla",
    "openpi": "openpi",
    "openpi_cfg": "openpi",
    "openvla": "prismatic",
    "openvla_oft": "prismatic",
    "starvla": "starVLA",
}
"""{model_type: package that RLinf's model imports}, for models that need another package."""


UNTRAINED_CRITICS = frozenset({"gr00t"})
"""Models with a critic that RLinf's `get_model` fails to unfreeze when it adds adapters."""


CAST_BYTES = {"openpi": 2}
"""Bytes per parameter of models that cast their weights, independent of the checkpoint.

pi0.5 keeps 3 % of its weights in float32: norms, and the first layer of its vision tower."""
VLM_PREFIX = {"openpi": "paligemma_with_expert.paligemma."}
"""Part of the names of parameters that `train_expert_only` and RLinf's new adapters freeze."""


PER_SAMPLE_MODELS = frozenset({"mlp_policy", "cnn_policy", "openvla", "openvla_oft", *OWN_MODELS})
"""Models that draw random numbers (Gaussian noise or tokens) for every sample separately."""
ONE_STEP_MODELS = frozenset(
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
"""Endings of the names of StarVLA frameworks with an action head that draws one step for all samples."""
SHARED_STEP = "samples of one forward pass share a denoise step"
STEP_COUNT_KEYS = ("num_steps", "denoising_steps")
"""Keys of the number of denoise steps, in the model's own section or beside it."""


def model_types() -> set[str]:
    """Return every `model_type` of the installed RLinf and of entry points.

    Unless RLinf's config module is imported already, they are read from its sources, as its import takes
    seconds.
    """
    sources = sources_of("rlinf")
    is_loaded = sys.modules.get("rlinf.config") is not None
    names = set() if is_loaded else sources.given_to("register", "config.py")
    if not names:
        from rlinf_async.hosts.rlinf.borrowed import SupportedModel

        names = set(SupportedModel.models)
    builders = sources.given_to("register_model", "models/__init__.py")
    return {*names, *builders, *names_of(MODELS_GROUP)}


def shared_chance(cfg: Mapping[str, Any]) -> str | None:
    """Return the random numbers that a model draws once for all samples of a forward pass; "" for none, None
    if not examined.
    """
    model = lookup(cfg, "actor.model") or {}
    kind = str(model.get("model_type"))
    if kind == "starvla":
        return _of_starvla(str(lookup(model, "starvla.framework_name") or "").lower())
    if kind == "openpi" and "fast" in str(lookup(model, "openpi.config_name")):
        return None  # pi0-FAST samples token by token
    if kind in PER_SAMPLE_MODELS:
        return ""
    if kind not in ONE_STEP_MODELS:
        return None
    if lookup(model, "openpi.is_nft"):
        return ""  # for NFT, pi0 keeps a step of its own for each sample
    return "" if is_joint(model) else SHARED_STEP


def is_joint(model: Mapping[str, Any]) -> bool:
    """Return True if log-probabilities are joint over all denoise steps; `model` is the model's section."""
    kind = str(model.get("model_type"))
    places = ("joint_logprob", f"{kind}.joint_logprob", "rl_head_config.joint_logprob")
    return kind in ONE_STEP_MODELS and any(lookup(model, place) is True for place in places)


def _of_starvla(framework: str) -> str | None:
    """Return `shared_chance` of a StarVLA framework; its name determines the action head."""
    if framework.endswith("oft"):
        return ""
    return SHARED_STEP if framework.endswith(STARVLA_ONE_STEP) else None


def scored_by(cfg: Mapping[str, Any]) -> str:
    """Return the part of an action that importance weights cover; empty for the whole action.

    If the config has no number of denoise steps (the checkpoint has it), the text says K.
    """
    model = lookup(cfg, "actor.model") or {}
    joint = is_joint(model)
    if not joint and shared_chance(cfg) != SHARED_STEP:
        return ""
    kind = str(model.get("model_type"))
    counts = [lookup(model, f"{place}{name}") for place in (f"{kind}.", "") for name in STEP_COUNT_KEYS]
    steps = next((str(value) for value in counts if value is not None), "K")
    if joint:
        parts = str(int(steps) + 1) if steps.isdigit() else "(K + 1)"
        return f"of the mean over {steps} denoise steps and their noise, which sees 1 / {parts} of a lag"
    return f"of one of {steps} denoise steps, which sees about 1 / {steps} of a lag" if steps != "1" else ""
