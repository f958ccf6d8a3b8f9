"""The keys of veRL's config: their fates here, their defaults, and the keys that nothing reads.

veRL itself lists its keys: the file `_generated_ppo_trainer.yaml` of the installed release has every one with
its default. Our own keys (`vla`, `env`, `async`) and the fates of veRL's are rows of `keys.toml`.
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
"""The end of Hydra's keys that name a class, or anything else that can be called."""
OUR_SECTIONS = ("async", "defaults", "env", "hydra", "model_engine", "vla")
"""Sections that veRL's list of its keys has not; `model_engine` is veRL's own, from composing."""
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
    """veRL's defaults, of which some point to others, in a config that sets nothing."""
    tree: Mapping[str, Any] = resolve(defaults(), defaults())
    return tree


def default_of(key: str) -> Any:
    """Return veRL's default of a dotted key, or of a section; None where it is null, or there is none."""
    return lookup(resolved_defaults(), key)


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


def usual(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """veRL's defaults by dotted keys as they come out in `cfg` (plain data): some point to others."""
    return dotted(resolve(defaults(), cfg))


def changes(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of `cfg` (plain data) whose values are not veRL's defaults, with those; null is nobody's."""
    # A default may be written as it stands there, come to what it does alone, or to what it does in `cfg`.
    # By hand, as OmegaConf would build all of it anew for each call.
    alike = (dotted(defaults()), dotted(resolved_defaults()), usual(cfg))
    for key, value in dotted(cfg).items():
        if value not in (None, {}) and not any(value == tree.get(key) for tree in alike):
            yield key, value


def filled_in(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return `cfg` (plain data) with the values that null stands for, and with veRL's defaults for those of
    its keys that are absent, except for those that every run has to set.
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
    """Do the same in a config itself: veRL's own code ends at a key that is absent, or at some nulls."""
    before, after = dotted(plain(config)), dotted(filled_in(plain(config)))
    with open_dict(config):
        for key, value in after.items():
            if key not in before or (value is not None and before[key] is None):
                OmegaConf.update(config, key, value)


def other_words(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each key by which another framework says something else than a key here."""
    for key, value in dotted(cfg).items():
        names = [name for name in counterparts(key) if (row := TABLE.find(name)) and row.name == name]
        row = TABLE.find(key)
        if value is None or not names or (row is not None and row.name == key):
            continue
        if (counting := lookup(cfg, names[0])) != value:
            yield (
                f"{key}={shortened(value)} is read by the environment alone: "
                f"{names[0]}={shortened(counting)} counts"
            )


def without_fate(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each key of veRL's that is undecided here, if it is not veRL's default."""
    for key, value in changes(cfg):
        if TABLE.find(key) is None and _is_known(key, defaults()):
            yield (
                f"{key}={shortened(value)}: nobody has looked at what becomes of this key under "
                "trainer_mode vla_async"
            )


def class_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the keys of veRL's engine that name something else to call than by default: veRL's check calls
    it, and so would `explain`.
    """
    for key, value in changes(cfg):
        if key.startswith(ENGINE_PREFIXES) and CLASS_SUFFIX in f"{key}={value}":
            yield Reason(
                f"{key}={shortened(value)} is not served: veRL's own classes are; remove it", f"~{key}"
            )


def unknown_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the keys in sections of veRL's, or of ours, that neither has, with the nearest that is there."""
    verl_keys = defaults()
    # Without veRL its keys are not known, and every one of them would seem to be a mistake.
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
    """Return True if a tree has a key, or says of a section around it only that it may hold anything."""
    *sections, name = key.split(".")
    for section in sections:
        if section not in tree:
            return False
        inner = tree[section]
        if not isinstance(inner, Mapping) or not inner:
            return True  # null, an empty block, or a pointer to another section
        tree = inner
    return name in tree
