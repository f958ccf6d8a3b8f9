"""The values of a config beside veRL's defaults, which tell what keys there are and of which kind each is.

What the table of keys says of them, and what stands in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.core.config_keys import dotted, lookup, nearest, shortened
from rlinf_async.hosts.async_block import MISSING_VALUE, plain
from rlinf_async.hosts.judge.keys import counterparts, own_sections
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.verl.keys import TABLE, defaults, resolve, resolved_defaults

ENGINE_PREFIXES = ("actor_rollout_ref.", "trainer.")
"""The beginnings of keys that veRL's engine may read."""
CLASS_SUFFIX = "_target_"
"""The end of Hydra's keys that name a class, or anything else that can be called."""
OUR_SECTIONS = ("async", "defaults", "env", "hydra", "model_engine", "vla")
"""Sections that veRL's list of its keys has not; `model_engine` is veRL's own, from composing."""


def usual(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """veRL's defaults by dotted keys as they come out in `cfg` (plain data): some point to others."""
    return dotted(resolve(defaults(), cfg))


def changes(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of `cfg` (plain data) whose values are not veRL's defaults, with those; null is nobody's."""
    # A default may be written as it stands there, come to what it does alone, or to what it does in `cfg`.
    # By hand, as OmegaConf would build all of it anew for each call.
    alike = (dotted(defaults()), resolved_defaults(), usual(cfg))
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
