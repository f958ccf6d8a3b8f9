"""Models that RLinf builds by name: those of the `rlinf_async.models` entry points."""

from importlib.metadata import entry_points
from typing import Any

import torch

ENTRY_POINTS = "rlinf_async.models"


def register_models() -> None:
    """Make every entry of `rlinf_async.models` a `model_type` of RLinf. May be called again."""
    from rlinf.models import register_model  # seconds of imports, for those only who register

    for entry in entry_points(group=ENTRY_POINTS):
        register_model(entry.name, _Builder(entry), category="embodied", force=True)


class _Builder:
    """Imports a model's builder only when RLinf asks for the model."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __call__(self, cfg: Any, torch_dtype: torch.dtype | None) -> torch.nn.Module:
        return self._entry.load()(cfg, torch_dtype)
