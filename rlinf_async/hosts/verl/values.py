"""The values of a config beside veRL's defaults, which tell what keys there are and of which kind each is."""

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
from rlinf_async.hosts.kit.kinds import Anything, Block, Flag, Kind, Listed, Real, Text
from rlinf_async.observe.plain_data import FAST_YAML_LOADER

DEFAULT_POINTER = re.compile(r"\$\{(?:oc\.select:)?(?P<key>[\w.]+)\s*(?:,\s*(?P<fallback>.*))?\}", re.DOTALL)
"""A default of veRL's that points to another key, with the value that it has where that key is absent."""
PART_POINTER = re.compile(r"\$\{[\w.]+\}")
"""A pointer within a longer text."""


@cache
def defaults() -> Mapping[str, Any]:
    """veRL's own config with its defaults; empty where veRL is not here. veRL is not imported."""
    verl = find_spec("verl")
    for folder in (verl.submodule_search_locations or ()) if verl else ():
        path = Path(folder, "trainer", "config", "_generated_ppo_trainer.yaml")
        if path.is_file():
            content: Mapping[str, Any] = yaml.load(path.read_text(), Loader=FAST_YAML_LOADER)
            return content
    return {}


@cache
def resolved_defaults() -> Mapping[str, Any]:
    """veRL's defaults by dotted keys, of which some point to others, where nobody sets anything."""
    return dotted(_resolve(defaults(), defaults()))


def changes(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of `cfg` (plain data) whose values are not veRL's defaults, with those; null is nobody's."""
    # A default may be written as it stands there, come to what it does alone, or to what it does in `cfg`.
    # By hand, as OmegaConf would build all of it anew for each call.
    alike = (dotted(defaults()), resolved_defaults(), dotted(_resolve(defaults(), cfg)))
    for key, value in dotted(cfg).items():
        if value not in (None, {}) and not any(value == tree.get(key) for tree in alike):
            yield key, value


def is_switch(key: str) -> bool:
    """Return True if veRL's default of a key is true or false."""
    return isinstance(resolved_defaults().get(key), bool)


def kind_of_default(key: str) -> Kind | None:
    """Return the kind of veRL's default; None where there is no default, or it is null."""
    default = resolved_defaults().get(key)
    # Before numbers: a bool is an int to Python.
    if is_switch(key):
        return Flag()
    if isinstance(default, int | float):
        return Real()
    if isinstance(default, list):
        return Listed(Anything())
    return Text() if isinstance(default, str) else Block() if isinstance(default, Mapping) else None


def _resolve(tree: Any, cfg: Mapping[str, Any], section: str = "") -> Any:
    """Return a tree of defaults that stands at `section`, with the values in `cfg` that it points to."""
    if isinstance(tree, Mapping):
        return {name: _resolve(value, cfg, f"{section}.{name}") for name, value in tree.items()}
    if not isinstance(tree, str) or "${" not in tree:
        return tree
    if pointer := DEFAULT_POINTER.fullmatch(tree):
        return _pointed_to(pointer, cfg, section)
    return PART_POINTER.sub(lambda part: str(_resolve(part[0], cfg, section)), tree)


def _pointed_to(pointer: re.Match[str], cfg: Mapping[str, Any], place: str) -> Any:
    key, fallback = pointer["key"], pointer["fallback"]
    if key.startswith("."):  # a key of the same section
        key = f"{place.rpartition('.')[0]}{key}".lstrip(".")
    section, _, name = key.rpartition(".")
    around = lookup(cfg, section) if section else cfg
    # `???` stands for no value, as it does to OmegaConf.
    if isinstance(around, Mapping) and around.get(name, MISSING_VALUE) != MISSING_VALUE:
        return _resolve(around[name], cfg, f".{key}")
    if fallback and "${" in fallback:
        return _resolve(fallback, cfg, place)
    return yaml.load(fallback, Loader=FAST_YAML_LOADER) if fallback else None
