"""The policy of a config without its weights, whose layers a judge looks at; it is built once."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from rlinf_async.core.failures import ForeignError
from rlinf_async.entry_points import MODELS_GROUP, load_class
from rlinf_async.hosts.kit.policy_size import is_declared
from rlinf_async.hosts.verl.view import VerlView
from rlinf_async.loops.foreign import contained

USUAL_UNITS = ("Linear", ["Linear"], ["SmolVLMEncoderLayer", "LlamaDecoderLayer"])
"""Values of `UNITS_KEY` that are not tried out, as that imports torch.

Nearly all policies have a Linear; the last value is of our configs."""


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
