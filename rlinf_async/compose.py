"""Composing a config by name, from this package or from a directory of the user's."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from rlinf_async.config import FLAGS_OF_BLOCK, with_flags
from rlinf_async.core.config_keys import clipped

CONFIG_PACKAGE = "rlinf_async.configs"
VERSION_BASE = "1.1"
"""Hydra's version base in RLinf's entry scripts, so that a config composes here as it does there."""
VERL_PREFIX = "verl_"
"""The prefix of configs for veRL; the others are for RLinf."""
LOCAL_FOLDER = "local"
"""The folder of the configs that need no framework."""
FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, if PyYAML was built with it. `config_files` checks a user's file before it is read."""
FOLDER_VARIABLES = {"EMBODIED_PATH": ("..",), "REPO_PATH": ("..", "..", "..")}
"""Variables that RLinf's launch scripts export, relative to their folder `config`: RLinf's configs find other
configs by them."""

WRONG_PLUS = re.compile(r"async appears more than once|Multiple values for async|Could not override 'async'")
"""Hydra's messages for `+async=full` if the config has chosen a preset, and for `async=full` if it has
not."""

BLOCK_FLAG = re.compile(rf"^async\.({'|'.join(FLAGS_OF_BLOCK)})=(true|false)$", re.IGNORECASE)
"""An override that gives true or false instead of a block of flags."""

PRESET_CHOICE = re.compile(r"^\+{0,2}async=(?!\{)")
"""An override that chooses a preset by the name of its file."""
CONFIG_SUFFIXES = (".yaml", ".yml")
LONG_NUMBER = re.compile(r"\d{4300}")
LONGEST_WORD = 250
"""Most characters of the name of a config or a key; file systems allow no longer names."""


def locate(name: str, directory: Path | None) -> tuple[str, Path | None]:
    """Return a config's name and directory; `name` may be the path of a file, such as a run's `config.yaml`.

    Raises:
        ValueError: `name` is the path of a file that does not exist, or an absolute path of something else.
    """
    path = Path(name)
    if path.suffix not in CONFIG_SUFFIXES:
        if path.is_absolute():
            raise ValueError(_no_config(path))
        return os.path.normpath(name), directory  # `./NAME` would nest the config for Hydra
    if directory is not None and (directory / path).is_file() and not path.is_absolute():
        return str(path.with_suffix("")), directory
    if not path.is_file():
        raise ValueError(f"there is no file {name}; a config of this package is named without .yaml")
    return path.stem, path.absolute().parent


def _no_config(path: Path) -> str:
    """Return a sentence on an absolute path that names no YAML file."""
    if path.is_dir():
        return f"{path} is a directory; name a config in it, as in {path / 'config.yaml'}"
    if (file := Path(f"{path}.yaml")).is_file():
        return f"{path} is no config; write its suffix, too: {file}"
    return f"{path} is no config: the name of its file ends in .yaml; see rlinf-async configs"


def compose_config(name: str, overrides: Sequence[str], directory: Path | None = None) -> DictConfig:
    """Compose the config `name` with Hydra overrides.

    `async.mode=full` works with and without a `+`, whether or not the config has an async block, and so does
    `async=full`. Hydra itself requires the `+` if there is no block, and refuses it if there is one.

    Raises:
        ValueError: the config is for veRL, which is not installed, or `directory` is no directory.
    """
    if directory is None and name.startswith(VERL_PREFIX) and find_spec("verl") is None:
        raise ValueError(f"{name} is for veRL, which is not installed here; see docs/verl.md")
    if directory is not None:
        _look_into(directory, name)
    check_words(name, overrides)
    if name.startswith(f"{LOCAL_FOLDER}/"):  # Hydra would look for the presets in that folder
        overrides = [PRESET_CHOICE.sub("async.mode=", override) for override in overrides]
    try:
        return _compose_once(name, [_lenient(override) for override in overrides], directory)
    except ConfigCompositionException as error:
        turned_overrides = [_turn(override) for override in overrides]
        if turned_overrides == list(overrides) or not WRONG_PLUS.search(str(error)):
            raise
    return _compose_once(name, [_lenient(override) for override in turned_overrides], directory)


def check_words(name: str, overrides: Sequence[str]) -> None:
    """Check that the name of the config, and all keys, are not too long for a file system and Hydra.

    Raises:
        ValueError: a name, a key or a number is too long.
    """
    for word in (name, *(override.partition("=")[0] for override in overrides)):
        if len(word) > LONGEST_WORD:
            raise ValueError(
                f"{clipped(word)} has {len(word)} characters; a config or a key has {LONGEST_WORD} at most"
            )
    for override in overrides:
        if LONG_NUMBER.search(override):
            raise ValueError(f"{clipped(override)} is a number of more digits than Python reads")


def _look_into(directory: Path, name: str) -> None:
    """Check the user's directory and file before Hydra reads them, and set the variables of RLinf's
    configs."""
    if not directory.is_dir():
        raise ValueError(f"--config-dir={directory} is no directory; name the one that holds {name}.yaml")
    path = directory / f"{name}.yaml"
    if os.path.lexists(path):
        from rlinf_async.config_files import check_not_empty  # for a user's file alone

        check_not_empty(path)
    elif (other := path.with_suffix(".yml")).is_file():
        raise ValueError(f"Hydra reads no {other.name}; rename {other} to {path.name}")
    if directory.name == "config":
        for variable, folder in FOLDER_VARIABLES.items():
            os.environ.setdefault(variable, str(Path(directory.resolve(), *folder).resolve()))


def _compose_once(name: str, overrides: Sequence[str], directory: Path | None) -> DictConfig:
    # Hydra refuses a second composition in a process until the first is cleared.
    GlobalHydra.instance().clear()
    with warnings.catch_warnings():
        # RLinf's configs leave the order of their defaults to this version base, and Hydra warns each time.
        warnings.filterwarnings("ignore", message=r"(?s).*(missing `_self_`|version_base=)")
        # If a config is missing on the search path, the error that follows names it.
        warnings.filterwarnings("ignore", message=r"provider=hydra.searchpath .* is not available")
        # OmegaConf uses `yaml.SafeLoader`: with Python's loader, reading veRL's config would take longer than
        # all the rest.
        with _hydra_at(directory), _checked_files(), patch.object(yaml, "SafeLoader", FAST_LOADER):
            return compose(name, overrides=list(overrides))


def _checked_files() -> AbstractContextManager[Any]:
    """Have every file of the user's checked before Hydra reads it."""
    source_class = SourcesRegistry.instance().resolve("file")  # Hydra loads its own copy of the class
    load = source_class.load_config

    def load_checked(source: Any, config_path: str) -> Any:
        path = Path(source.path, source._normalize_file_name(config_path))
        if path.exists():
            from rlinf_async.config_files import check_file  # as above

            check_file(path)
        result = load(source, config_path)
        _write_out_flags(result.config)
        return result

    return patch.object(source_class, "load_config", load_checked)


def _write_out_flags(config: Any) -> None:
    """Write `train: true` in the block as `train: {enabled: true}`, so that overrides can add keys to it."""
    # An interpolation may read a key of another file.
    if not OmegaConf.is_dict(config) or OmegaConf.is_interpolation(config, "async"):
        return
    block: Any = config.get("async")
    if OmegaConf.is_dict(block):
        plain: Any = OmegaConf.to_container(block)
        for name, content in with_flags(plain).items():
            if isinstance(plain[name], bool) and content != plain[name]:
                block[name] = content


def _hydra_at(directory: Path | None) -> AbstractContextManager[None]:
    if directory is None:
        return initialize_config_module(CONFIG_PACKAGE, version_base=VERSION_BASE)
    return initialize_config_dir(str(directory.resolve()), version_base=VERSION_BASE)


def unresolved(cfg: DictConfig) -> dict[str, Any]:
    """A config as plain data, with its interpolations as they are written."""
    return OmegaConf.to_container(cfg, resolve=False)  # type: ignore[return-value]


def packaged_names() -> list[str]:
    """The names of this package's configs for the installed frameworks, and of those that need none."""
    names = sorted(path.name for path in files(CONFIG_PACKAGE).iterdir())
    configs = [name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
    configs_here = [
        name for name in configs if find_spec("verl" if name.startswith(VERL_PREFIX) else "rlinf")
    ]
    local = sorted(path.name for path in (files(CONFIG_PACKAGE) / LOCAL_FOLDER).iterdir())
    return configs_here + [f"{LOCAL_FOLDER}/{name.removesuffix('.yaml')}" for name in local]


def described(name: str) -> str:
    """The comment at the top of a config of this package, without indented lines such as commands."""
    words = []
    for line in (files(CONFIG_PACKAGE) / f"{name}.yaml").read_text().splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(("# @", "#  ")):
            words.append(line[1:].strip())
    return " ".join(filter(None, words))


def names_in(directory: Path) -> list[str]:
    """The names of the configs in a directory of the user's."""
    return sorted(path.stem for path in directory.glob("*.yaml"))


def _lenient(override: str) -> str:
    """Write an override of the block with `++`, which Hydra accepts whether or not the key exists.

    True or false for a block is written to its flags: Hydra would replace the whole block by it.
    """
    bare = override.lstrip("+")
    if not bare.startswith("async."):
        return override
    if flag := BLOCK_FLAG.match(bare):
        name, value = flag[1].lower(), flag[2].lower()
        flags = ",".join(f"{key}:{value}" for key in FLAGS_OF_BLOCK[name])
        return f"++async.{name}={{{flags}}}"
    return f"++{bare}"


def _turn(override: str) -> str:
    """Turn `async=full` into `+async=full`, and the other way round."""
    if override.startswith("+async="):
        return override.removeprefix("+")
    return f"+{override}" if override.startswith("async=") else override
