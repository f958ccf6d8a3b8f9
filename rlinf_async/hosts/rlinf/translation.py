"""RLinf's keys in other words: those that RLinf moves by itself, and those of its asynchronous PPO."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.kit.kinds import Kind, Real, Whole

ASYNC_PPO = "decoupled_actor_critic"
"""The `algorithm.loss_type` of configs that are made for RLinf's own asynchronous PPO, `train_async.py`."""

MOVED_KEYS = (
    ("algorithm.rollout_epoch", "env.train", "rollout_epoch"),
    ("algorithm.eval_rollout_epoch", "env.eval", "rollout_epoch"),
)
"""Keys of RLinf 0.2 that its `validate_cfg` moves, unless the new one is there, to a section and a name."""


@dataclass(frozen=True)
class Translation:
    """A key of RLinf's asynchronous PPO, and the setting under `async` that does the same."""

    key: str
    kind: Kind
    settings: Mapping[str, Any]
    """Keys by section and name; a value None stands for the value that RLinf's key has."""


KEY_TRANSLATIONS = (
    # Both count policy versions, which are global steps: older trajectories are not trained.
    Translation("algorithm.staleness_threshold", Whole(0), {"train.max_staleness": None}),
    # RLinf leaves out samples whose weight pi_prox / mu is above the threshold, and divides by the rest. The
    # nearest of ours has the same threshold and cuts weights to it.
    Translation(
        "algorithm.behave_weight_threshold",
        Real(above=0),
        {"train.correction": "tis", "advanced.max_weight": None},
    ),
)


def as_rlinf_counts(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The config after what RLinf's `validate_cfg` moves in the sections that we count with.

    Our check comes before it: RLinf starts the cluster first.
    """
    moved = copy.deepcopy(dict(cfg))
    for key, section, name in MOVED_KEYS:
        value, place = lookup(moved, key), lookup(moved, section)
        if value is not None and isinstance(place, dict):
            place.setdefault(name, value)
    return moved


def translated(cfg: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, Any]:
    """The `async` block with what the config says by RLinf's own keys; an explicit key of the block wins."""
    result = dict(block)
    for translation, value in _present(cfg):
        given = _given(translation, result)
        if _contradicts(translation, given):
            continue
        for name, setting in _settings(translation, value).items():
            section, key = name.split(".")
            result[section] = {key: setting, **(result.get(section) or {})}
    return result


def translations(cfg: Mapping[str, Any], block: Mapping[str, Any]) -> list[str]:
    """Return a line for each key of RLinf's that `translated` translates, or why one has no effect."""
    lines = []
    for translation, value in _present(cfg):
        given, settings = _given(translation, block), _settings(translation, value)
        said = {name: given.get(name, setting) for name, setting in settings.items()}
        if _contradicts(translation, given) or not settings.keys() - given.keys():
            others = ", ".join(f"async.{name}={said[name]}" for name in settings if name in given)
            lines.append(f"{translation.key}={value} has no effect: {others} says otherwise")
        else:
            text = ", ".join(f"async.{name}={setting}" for name, setting in said.items())
            lines.append(f"{translation.key}={value} -> {text}")
    return lines


def _settings(translation: Translation, value: Any) -> dict[str, Any]:
    return {name: value if fixed is None else fixed for name, fixed in translation.settings.items()}


def _given(translation: Translation, block: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of `translation` that the block has itself."""
    given = {}
    for name in translation.settings:
        section, key = name.split(".")
        content = block.get(section) or {}
        if key in content:
            given[name] = content[key]
    return given


def _present(cfg: Mapping[str, Any]) -> list[tuple[Translation, Any]]:
    """The translations that apply, with the values of RLinf's keys."""
    if lookup(cfg, "algorithm.loss_type") != ASYNC_PPO:
        return []
    pairs = ((translation, lookup(cfg, translation.key)) for translation in KEY_TRANSLATIONS)
    return [(translation, value) for translation, value in pairs if value is not None]


def _contradicts(translation: Translation, given: Mapping[str, Any]) -> bool:
    """Return True if the block asks for something else than the setting that the translation is part of."""
    return any(
        fixed is not None and name in given and given[name] != fixed
        for name, fixed in translation.settings.items()
    )
