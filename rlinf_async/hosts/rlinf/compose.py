"""Composing a config by name, from this package or from a directory of the user's."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

PACKAGED = "rlinf_async.configs"
VERSION_BASE = "1.1"
"""What RLinf's entry scripts give to Hydra, so that a config composes here as it does there."""


def compose_config(name: str, overrides: Sequence[str], directory: Path | None = None) -> DictConfig:
    """The config `name` with Hydra overrides.

    `async.mode=full` works whether or not the config has an async block; Hydra by itself asks for a `+`
    where it has none.
    """
    GlobalHydra.instance().clear()
    with warnings.catch_warnings():
        # RLinf's configs leave the order of their defaults to this version base, and Hydra says so each time.
        warnings.filterwarnings("ignore", message=r"(?s).*(missing `_self_`|version_base=)")
        with _initialized(directory):
            return compose(name, overrides=[_lenient(override) for override in overrides])


def _initialized(directory: Path | None) -> AbstractContextManager[None]:
    if directory is None:
        return initialize_config_module(PACKAGED, version_base=VERSION_BASE)
    return initialize_config_dir(str(directory.resolve()), version_base=VERSION_BASE)


def packaged_names() -> list[str]:
    """Configs that this package ships."""
    names = (path.name for path in files(PACKAGED).iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def _lenient(override: str) -> str:
    return f"++{override}" if override.startswith("async.") else override
