"""Models that RLinf builds by name: those of the `rlinf_async.models` entry points."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from rlinf_async.hosts.rlinf.sources import sources_of

if TYPE_CHECKING:
    import torch

ENTRY_POINTS = "rlinf_async.models"


def register_models() -> None:
    """Make every entry of `rlinf_async.models` a `model_type` of RLinf. May be called again."""
    from rlinf_async.hosts.rlinf.borrowed import (
        register_model,  # seconds of imports, for those only who register
    )

    for entry in entry_points(group=ENTRY_POINTS):
        register_model(entry.name, _Builder(entry), category="embodied", force=True)


def model_types() -> set[str]:
    """Every `model_type` of the RLinf that is here, and of the entry points.

    They are read from its sources where it is not imported, as importing its list takes seconds.
    """
    sources = sources_of("rlinf")
    loaded = sys.modules.get("rlinf.config") is not None
    names = set() if sources is None or loaded else sources.given_to("register", "config.py")
    if not names:
        from rlinf_async.hosts.rlinf.borrowed import SupportedModel

        names = set(SupportedModel.models)
    builders = set() if sources is None else sources.given_to("register_model", "models/__init__.py")
    return {*names, *builders, *entry_points(group=ENTRY_POINTS).names}


class _Builder:
    """Imports a model's builder only when RLinf asks for the model."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __call__(self, cfg: Any, torch_dtype: torch.dtype | None) -> torch.nn.Module:
        return self._entry.load()(cfg, torch_dtype)
