"""The fate of each key of veRL's config here, and its allowed values.

veRL itself lists its keys: the file `_generated_ppo_trainer.yaml` of the installed release has every one with
its default. Our own keys (`vla`, `env`, `async`) and the fates of veRL's are rows of `keys.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from rlinf_async.core.config_keys import dotted, lookup
from rlinf_async.hosts.async_block import MISSING_VALUE
from rlinf_async.hosts.judge.keys import Table
from rlinf_async.hosts.judge.rows import read_rows
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, MODEL_SECTION
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
    return dotted(_resolved())


@cache
def _resolved() -> Mapping[str, Any]:
    tree: Mapping[str, Any] = resolve(defaults(), defaults())
    return tree


def default_of(key: str) -> Any:
    """Return veRL's default of a dotted key, or of a section; None where it is null, or there is none."""
    return lookup(_resolved(), key)


def resolve(tree: Any, cfg: Mapping[str, Any], section: str = "") -> Any:
    """Return a tree of defaults that stands at `section`, with the values in `cfg` that it points to."""
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


ROWS, _ = read_rows(
    Path(__file__).with_name("keys.toml"),
    {
        "trainer.use_v1": {"serves": lambda value: value is True},
        "critic.enable": {"serves": lambda value: value is False},
        f"{ACTOR_SECTION}.strategy": {"serves": lambda value: value == "fsdp2"},
        f"{ACTOR_SECTION}.policy_loss.loss_mode": {"serves": lambda value: value != "bypass_mode"},
        f"{MODEL_SECTION}.lora.rank": {"serves": lambda value: value is None or value <= 0},
        # The name of our model in veRL's keys, which our configs set.
        "without effect": {"serves": lambda value: value == "vla"},
    },
)
TABLE = Table(ROWS, default_of=default_of, is_whole=True)
"""Every key that is ours, or that has a fate here."""
