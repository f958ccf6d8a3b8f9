"""A host without a framework: the reference for the other hosts, and the first example.

The names below are imported on first use, so that reading a config does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlinf_async.hosts.local.settings import LocalSettings
    from rlinf_async.hosts.local.trainer import LocalResult, LocalTrainer

MODULE_OF_CLASS = {"LocalResult": "trainer", "LocalSettings": "settings", "LocalTrainer": "trainer"}
__all__ = ["LocalResult", "LocalSettings", "LocalTrainer"]


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF_CLASS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULE_OF_CLASS[name]}"), name)
