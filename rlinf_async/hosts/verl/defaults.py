"""veRL's own keys and their defaults, without importing veRL.

The file `_generated_ppo_trainer.yaml` of the installed release has every key with its default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from rlinf_async.core.config_keys import dotted, lookup
from rlinf_async.hosts.async_block import MISSING_VALUE
from rlinf_async.observe.yaml_data import FAST_YAML_LOADER

DEFAULT_POINTER = re.compile(r"\$\{(?:oc\.select:)?(?P<key>[\w.]+)\s*(?:,\s*(?P<fallback>.*))?\}", re.DOTALL)
"""A default of veRL that points to another key, with the fallback if that key is absent."""
PART_POINTER = re.compile(r"\$\{[\w.]+\}")
"""A pointer within a longer text."""


@cache
def defaults() -> Mapping[str, Any]:
    """Return veRL's own config with its defaults, without importing veRL; empty if veRL is not installed."""
    verl = find_spec("verl")
    for folder in (verl.submodule_search_locations or ()) if verl else ():
        path = Path(folder, "trainer", "config", "_generated_ppo_trainer.yaml")
        if path.is_file():
            return yaml.load(path.read_text(), Loader=FAST_YAML_LOADER)
    return {}


@cache
def resolved_defaults() -> Mapping[str, Any]:
    """Return veRL's defaults, with the pointers to other keys resolved, for a config that sets nothing."""
    return resolve(defaults(), defaults())


def default_of(key: str) -> Any:
    """Return veRL's default of a dotted key or of a section; None if it is null or absent."""
    return lookup(resolved_defaults(), key)


def resolve(tree: Any, cfg: Mapping[str, Any], section: str = "") -> Any:
    """Return a tree of defaults, the block at `section`, with pointers replaced by their values in `cfg`."""
    if isinstance(tree, Mapping):
        return {name: resolve(value, cfg, f"{section}.{name}") for name, value in tree.items()}
    if not isinstance(tree, str) or "${" not in tree:
        return tree
    if pointer := DEFAULT_POINTER.fullmatch(tree):
        return _pointed_to(pointer, cfg, section)
    return PART_POINTER.sub(lambda part: str(resolve(part[0], cfg, section)), tree)


def _pointed_to(pointer: re.Match[str], cfg: Mapping[str, Any], place: str) -> Any:
    key, fallback = pointer["key"], pointer["fallback"]
    if key.startswith("."):  # a key of the same section
        key = f"{place.rpartition('.')[0]}{key}".lstrip(".")
    section, _, name = key.rpartition(".")
    around = lookup(cfg, section) if section else cfg
    # `???` stands for no value, as it does to OmegaConf.
    if isinstance(around, Mapping) and around.get(name, MISSING_VALUE) != MISSING_VALUE:
        return resolve(around[name], cfg, f".{key}")
    if fallback and "${" in fallback:
        return resolve(fallback, cfg, place)
    return yaml.load(fallback, Loader=FAST_YAML_LOADER) if fallback else None


def usual(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return veRL's defaults by dotted key, with pointers to other keys resolved in `cfg` (plain data)."""
    return dotted(resolve(defaults(), cfg))


def changes(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of `cfg` (plain data) with values other than null and veRL's defaults."""
    # A default counts in three forms: as written, resolved without a config, or resolved in `cfg`. They are
    # resolved here, as OmegaConf would build the whole config again for each call.
    alike = (dotted(defaults()), dotted(resolved_defaults()), usual(cfg))
    for key, value in dotted(cfg).items():
        if value not in (None, {}) and not any(value == tree.get(key) for tree in alike):
            yield key, value


def is_known(key: str, tree: Mapping[str, Any]) -> bool:
    """Return True if a tree has a key, or an open section around it, with any keys."""
    *sections, name = key.split(".")
    for section in sections:
        if section not in tree:
            return False
        inner = tree[section]
        if not isinstance(inner, Mapping) or not inner:
            return True  # null, an empty block, or a pointer to another section
        tree = inner
    return name in tree
