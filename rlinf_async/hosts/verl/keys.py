"""The keys of veRL's config: their effects here, their defaults, and unknown keys.

veRL itself lists its keys: the file `_generated_ppo_trainer.yaml` of the installed release has every key with
its default. Our own keys (`vla`, `env`, `async`), and the effects of veRL's keys, are rows of `keys.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.core.config_keys import dotted, lookup, nearest, shortened
from rlinf_async.hosts.async_block import MISSING_VALUE, plain
from rlinf_async.hosts.judge.keys import Table, counterparts, own_sections
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.judge.rows import read_rows
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, MODEL_SECTION
from rlinf_async.observe.plain_data import FAST_YAML_LOADER

ENGINE_PREFIXES = ("actor_rollout_ref.", "trainer.")
"""The beginnings of keys that veRL's engine may read."""
CLASS_SUFFIX = "_target_"
"""The end of Hydra's keys that name a class or another callable."""
OUR_SECTIONS = ("async", "defaults", "env", "hydra", "model_engine", "vla")
"""Sections that are not in veRL's list of keys; veRL itself adds `model_engine` when a config is composed."""
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
            content: Mapping[str, Any] = yaml.load(path.read_text(), Loader=FAST_YAML_LOADER)
            return content
    return {}


@cache
def resolved_defaults() -> Mapping[str, Any]:
    """Return veRL's defaults, with the pointers to other keys resolved, for a config that sets nothing."""
    tree: Mapping[str, Any] = resolve(defaults(), defaults())
    return tree


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
TABLE = Table(ROWS, default_of=default_of, knows_all_defaults=True)
"""Our own keys, and veRL's keys with an effect here."""


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


def filled_in(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return `cfg` (plain data) with nulls replaced by the values that they stand for, and with veRL's
    defaults for absent keys, except for keys that every run must set.
    """
    result = TABLE.without_nulls(cfg)
    for key, value in usual(cfg).items():
        row, (*sections, name) = TABLE.find(key), key.split(".")
        if value == MISSING_VALUE or (row is not None and row.required):
            continue
        place: Any = result
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.setdefault(name, value)
    return result


def fill_in(config: DictConfig) -> None:
    """Do the same in a config in place, as veRL's own code fails at absent keys and at some nulls."""
    before, after = dotted(plain(config)), dotted(filled_in(plain(config)))
    with open_dict(config):
        for key, value in after.items():
            if key not in before or (value is not None and before[key] is None):
                OmegaConf.update(config, key, value)


def other_words(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each key of another framework that contradicts the key of the same setting here."""
    for key, value in dotted(cfg).items():
        names = [name for name in counterparts(key) if (row := TABLE.find(name)) and row.name == name]
        row = TABLE.find(key)
        if value is None or not names or (row is not None and row.name == key):
            continue
        if (counting := lookup(cfg, names[0])) != value:
            yield (
                f"only the environment reads {key}={shortened(value)}: the run uses "
                f"{names[0]}={shortened(counting)}"
            )


def without_fate(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each undecided key of veRL that does not have veRL's default."""
    for key, value in changes(cfg):
        if TABLE.find(key) is None and _is_known(key, defaults()):
            yield (
                f"{key}={shortened(value)}: the effect of this key under trainer_mode vla_async was not "
                "examined"
            )


def class_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each key of veRL's engine that names another callable than the default: veRL's check
    calls it, and so would `explain`.
    """
    for key, value in changes(cfg):
        if key.startswith(ENGINE_PREFIXES) and CLASS_SUFFIX in f"{key}={value}":
            yield Reason(
                f"{key}={shortened(value)} is not served, only veRL's own class; remove it", f"~{key}"
            )


def unknown_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each unknown key in a section of veRL or of ours, with the nearest known key."""
    verl_keys = defaults()
    # If veRL is not installed its keys are unknown, and each of them would look like a mistake.
    if not verl_keys:
        return
    names = [*dotted(verl_keys), *TABLE.names]
    for key, value in TABLE.unknown(cfg).items():
        section = key.partition(".")[0]
        if _is_known(key, verl_keys) or section not in {*verl_keys, "vla", "env"}:
            continue
        near = next((one for one in counterparts(key) if TABLE.find(one)), None) or nearest(
            key, [name for name in names if name.startswith(f"{section}.")], cutoff=0.8
        )
        hint = f"; did you mean {near}?" if near else "; remove it"
        yield Reason(f"neither veRL nor rlinf-async reads {key}={shortened(value)}{hint}", f"~{key}")


def unread_sections(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each block of the user's own."""
    if defaults():
        yield from own_sections(cfg, {*defaults(), *OUR_SECTIONS}, framework="veRL")


def _is_known(key: str, tree: Mapping[str, Any]) -> bool:
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
