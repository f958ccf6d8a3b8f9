"""Translates keys of RLinf's older releases and of its asynchronous PPO."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.config import BLOCK_KEY
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.rlinf.keys import TABLE
from rlinf_async.hosts.rlinf.losses import ASYNC_PPO

TRANSLATIONS: Mapping[str, Mapping[str, str]] = {
    row.name: dict(each.partition("=")[::2] for each in row.why.split(", "))
    for row in TABLE.rows
    if row.fate == "translated"
}
"""{key of RLinf: {key that takes its place: the value of that key, or "" for the value of RLinf's key}}."""


def as_rlinf_counts(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with old keys moved as RLinf's `validate_cfg` does, in the sections with sizes.

    Our check runs before `validate_cfg`, as RLinf starts the cluster first.
    """
    result = copy.deepcopy(dict(cfg))
    for key, places in TRANSLATIONS.items():
        section, _, name = next(iter(places)).rpartition(".")
        value, place = lookup(result, key), lookup(result, section)
        if value is not None and isinstance(place, dict) and not section.startswith(BLOCK_KEY):
            place.setdefault(name, value)
    return result


def translated(cfg: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `async` block with the settings from RLinf's own keys; an explicit key of the block wins."""
    result = dict(block)
    for _, settings, own in _translations(cfg, block):
        if settings.keys() != own.keys():
            for name, value in settings.items():
                section, _, key = name.partition(".")
                result[section] = {key: value, **(result.get(section) or {})}
    return result


def translations(cfg: Mapping[str, Any], block: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key of RLinf that `translated` translates, or the reason why it has no effect."""
    for setting, settings, own in _translations(cfg, block):
        outcome = own if settings.keys() == own.keys() else {**settings, **own}
        text = ", ".join(f"async.{name}={value}" for name, value in outcome.items())
        has_effect = outcome is not own
        yield f"{setting} -> {text}" if has_effect else f"{setting} has no effect: {text} says otherwise"


def overruled(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each of those keys in `cfg` (plain data) that nothing reads."""
    loss = lookup(cfg, "algorithm.loss_type")
    for key, places in TRANSLATIONS.items():
        value, place = lookup(cfg, key), next(iter(places))
        own = lookup(cfg, place)
        if value is None or (place.startswith(BLOCK_KEY) and loss == ASYNC_PPO):
            continue
        if place.startswith(BLOCK_KEY):
            yield f"{key}={value} has no effect with algorithm.loss_type={loss}; the key here is {place}"
        elif own not in (None, value):
            yield f"{key}={value} has no effect: {place}={own} takes its place"


def _translations(
    cfg: Mapping[str, Any], block: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield each of RLinf's keys that apply, with its value; the settings under `async` that do the same; and
    those of them that the block has itself (in a contradiction, only the contradicting ones).
    """
    # Only RLinf's asynchronous workers read these keys; in other configs they have no effect.
    applies = lookup(cfg, "algorithm.loss_type") == ASYNC_PPO
    for key, places in TRANSLATIONS.items():
        fixed = {name.removeprefix(f"{BLOCK_KEY}."): word for name, word in places.items()}
        value = lookup(cfg, key)
        settings = {name: word or value for name, word in fixed.items()}
        own = {name: setting for name in settings if (setting := lookup(block, name)) is not None}
        contradicts = any(word and own.get(name, word) != word for name, word in fixed.items())
        if applies and value is not None and fixed.keys() != places.keys():
            yield f"{key}={value}", own if contradicts else settings, own
