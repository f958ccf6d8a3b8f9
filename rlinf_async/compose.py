"""Composing a config by name, from this package or from a directory of the user's."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

PACKAGED = "rlinf_async.configs"
VERSION_BASE = "1.1"
"""What RLinf's entry scripts give to Hydra, so that a config composes here as it does there."""
OF_VERL = "verl_"
"""How the names of configs for veRL begin; the others are for RLinf."""
LOCAL = "local"
"""The folder of those that need no framework."""


SUFFIXES = (".yaml", ".yml")


def locate(name: str, directory: Path | None) -> tuple[str, Path | None]:
    """A config's name and directory: `name` may be the path of a file, such as a run's `config.yaml`.

    Raises:
        ValueError: `name` is a path, and there is no such file.
    """
    path = Path(name)
    if path.suffix not in SUFFIXES:
        return name, directory
    if not path.is_file():
        raise ValueError(f"there is no file {name}; a config of this package is named without .yaml")
    return path.stem, path.absolute().parent


def compose_config(name: str, overrides: Sequence[str], directory: Path | None = None) -> DictConfig:
    """The config `name` with Hydra overrides.

    `async.mode=full` works whether or not the config has an async block; Hydra by itself asks for a `+`
    where it has none.

    Raises:
        ValueError: a config of this package for veRL, which is not here.
    """
    if directory is None and name.startswith(OF_VERL) and find_spec("verl") is None:
        raise ValueError(f"{name} is for veRL, which is not installed here; see docs/verl.md")
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
    """Configs that this package ships, for the frameworks that are installed, and for none."""
    names = sorted(path.name for path in files(PACKAGED).iterdir())
    configs = [name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
    here = [name for name in configs if find_spec("verl" if name.startswith(OF_VERL) else "rlinf")]
    local = sorted(path.name for path in (files(PACKAGED) / LOCAL).iterdir())
    return here + [f"{LOCAL}/{name.removesuffix('.yaml')}" for name in local]


def described(name: str) -> str:
    """The comment with which a config of this package begins, but for indented lines such as commands."""
    words = []
    for line in (files(PACKAGED) / f"{name}.yaml").read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(("# @", "#  ")):
            words.append(line[1:].strip())
    return " ".join(filter(None, words))


def _lenient(override: str) -> str:
    return f"++{override}" if override.startswith("async.") else override
