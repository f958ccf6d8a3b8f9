"""Models of entry points, as model types of RLinf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlinf_async.entry_points import MODELS_GROUP, imported, provided

if TYPE_CHECKING:
    import torch


def register_models() -> None:
    """Register every entry point of `rlinf_async.models` as a `model_type` of RLinf. May be called again."""
    # Imported here, as it takes seconds.
    from rlinf_async.hosts.rlinf.borrowed import register_model

    for entry in provided(MODELS_GROUP):
        # `force`: else RLinf refuses a name that is registered, and a second call would fail.
        register_model(entry.name, DeclaredBuilder(entry), category="embodied", force=True)


class DeclaredBuilder:
    """Imports a model's builder only when RLinf builds the model."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __call__(self, cfg: Any, torch_dtype: torch.dtype | None) -> torch.nn.Module:
        from rlinf_async.hosts.policy_contract import keeping_defaults  # imports torch

        with keeping_defaults():
            return imported(self._entry)(cfg, torch_dtype)
