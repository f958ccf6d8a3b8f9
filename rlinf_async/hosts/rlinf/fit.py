"""Fits an `async` block to RLinf's settings: drops levels, and changes, refuses or translates settings."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlinf_async.config import LEVEL_NAMES, AsyncConfig, preset_levels
from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.async_block import BLOCK_KEY
from rlinf_async.hosts.judge.reasons import Change, Reason
from rlinf_async.hosts.judge.rows import Key
from rlinf_async.hosts.rlinf.keys import TABLE, TRANSLATIONS
from rlinf_async.hosts.rlinf.losses import ASYNC_PPO
from rlinf_async.hosts.rlinf.nft import has_ratio, without_ratio
from rlinf_async.hosts.rlinf.reasons import level_reasons, refuse_other_algorithms
from rlinf_async.hosts.rlinf.settings import overlap
from rlinf_async.hosts.tasks import settled


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of fitting a config.

    A level that only `mode: full` asks for is dropped if a setting of RLinf conflicts with it. The setting is
    refused instead if the level was asked for by name, or if no level would remain.
    """

    asynchrony: AsyncConfig
    """The block with the levels that remain; with all requested levels, if there are `reasons`."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Dropped levels, with the reason for each."""
    changes: tuple[Change, ...] = ()
    """RLinf's settings that the levels change."""
    reasons: tuple[Reason, ...] = ()
    """Why the config cannot run."""

    @property
    def notes(self) -> list[str]:
        """The dropped levels and changed settings, as sentences."""
        dropped = [f"async.{level} stays off: {why}" for level, why in self.dropped.items()]
        return [*dropped, *map(str, self.changes)]


def fit(cfg: Mapping[str, Any]) -> Fit:
    """Return the levels that `cfg` (plain data) can have, and the changes that they need.

    Raises:
        ValueError: the `async` block is not valid, or the algorithm is not served.
    """
    asynchrony = AsyncConfig.from_mapping(cfg.get("async"))
    if not asynchrony.active:
        return Fit(asynchrony=asynchrony)
    refuse_other_algorithms(cfg)
    if not has_ratio(cfg):
        asynchrony = without_ratio(asynchrony)
    unsupported = unsupported_keys(cfg, asynchrony)
    stopped_levels = {level for levels in unsupported.values() for level in levels}
    dropped = stopped_levels & preset_levels(cfg.get("async"))
    remaining = asynchrony.without(dropped)
    if not any(remaining.levels.values()):
        dropped, remaining = set(), asynchrony
    # After levels were dropped: `balance: auto` depends on whether level 2 remains.
    remaining = settled(remaining, lookup(cfg, "env.train") or {})
    refused_keys = [key for key, levels in unsupported.items() if not dropped.issuperset(levels)]
    changes = tuple(TABLE.changes(cfg)) if overlap(remaining) else ()
    reasons = [
        *level_reasons(cfg, remaining),
        *(key.refusal(f"async.{unsupported[key][0]}", lookup(cfg, key.name)) for key in refused_keys),
    ]
    return Fit(
        asynchrony=asynchrony if reasons else remaining,
        dropped={level: _why(cfg, level, unsupported) for level in LEVEL_NAMES if level in dropped},
        changes=changes,
        reasons=tuple(reasons),
    )


def _why(cfg: Mapping[str, Any], level: str, unsupported: Mapping[Key, tuple[str, ...]]) -> str:
    stops = [key for key, levels in unsupported.items() if level in levels]
    return "; ".join(f"it {key.refusal_words(lookup(cfg, key.name))}" for key in stops)


def unsupported_keys(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> dict[Key, tuple[str, ...]]:
    """Return settings of `cfg` (plain data) that levels which are on do not support, with those levels."""
    unsupported = {}
    on = asynchrony.levels
    for key in TABLE.refused:
        levels = tuple(level for level in key.levels if on[level])
        # A setting that no level supports is not supported by our workers without a level, either.
        if not any(on.values()) and set(key.levels) == set(LEVEL_NAMES):
            levels = ("skip",)
        if levels and key.where(cfg, asynchrony) and not key.allows(lookup(cfg, key.name)):
            unsupported[key] = levels
    return unsupported


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
