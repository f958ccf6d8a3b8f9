"""The layers of a policy that FSDP2 wraps, each as a unit of its own; and the policy without its weights, for
a judge of these layers.

A learner rank imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rlinf_async.core.config_keys import misspelt
from rlinf_async.core.failures import ForeignError
from rlinf_async.entry_points import MODELS_GROUP, load_class
from rlinf_async.hosts.kit.policy_size import is_declared
from rlinf_async.hosts.verl.view import UNITS_KEY, VerlView
from rlinf_async.loops.foreign import contained

USUAL_UNITS = ("Linear", ["Linear"], ["SmolVLMEncoderLayer", "LlamaDecoderLayer"])
"""Values of `UNITS_KEY` that are not tried out, as that imports torch.

Nearly all policies have a Linear; the last value is of our configs."""


def why_no_units(policy: Any, units: str | Sequence[str] | None) -> str:
    """Return the reason why FSDP2 finds no layer of `policy` to wrap; empty if it finds one.

    Args:
        units: the value of `UNITS_KEY`; if it names nothing, veRL takes the policy's `_no_split_modules`.
    """
    names = (
        [units] if isinstance(units, str) else list(units or getattr(policy, "_no_split_modules", None) or ())
    )
    classes = _classes(policy)
    if len(missing_units(policy, names)) < len(names):
        return ""
    near = next(filter(None, (misspelt(name, classes) for name in names)), None)
    hint = f"did you mean {near!r}?" if near else f"it consists of {', '.join(classes)}"
    setting = f"{UNITS_KEY}={names}" if names else UNITS_KEY
    return f"{setting} must name layers of {type(policy).__name__} that FSDP2 wraps; {hint}"


def missing_units(policy: Any, units: Sequence[str]) -> list[str]:
    """Return those of `units`, names of classes, that no layer of `policy` has, nor the policy itself."""
    return [name for name in units if name not in (*_classes(policy), type(policy).__name__)]


def _classes(policy: Any) -> list[str]:
    return sorted({type(module).__name__ for module in policy.modules() if module is not policy})


def trial_policy(view: VerlView) -> Any:
    """Return a policy without a checkpoint, built without memory; None if its layers are not to be tried."""
    if view.units in USUAL_UNITS or not is_declared(view.model) or view.model.get("model_path"):
        return None
    # As text, which a cache can compare: reasons and remarks both ask for the policy.
    return _built(json.dumps(view.model))


@lru_cache(maxsize=1)
def _built(text: str) -> Any:
    from rlinf_async.hosts.kit.building import built  # imports torch

    section = json.loads(text)
    try:
        return contained(lambda: built(load_class(MODELS_GROUP, str(section["model_type"])), section))
    except ForeignError:
        return None  # other checks give the reason
