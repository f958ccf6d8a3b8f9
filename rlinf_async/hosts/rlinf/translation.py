"""RLinf's keys in other words: those that RLinf moves by itself, and those of its asynchronous PPO."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.nested import lookup
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
    level: str
    settings: Mapping[str, Any]
    """The level's keys; a value None stands for the value that RLinf's key has."""


KEY_TRANSLATIONS = (
    # Both count policy versions, which are global steps: older trajectories are not trained.
    Translation("algorithm.staleness_threshold", Whole(0), "train", {"max_staleness": None}),
    # RLinf leaves out samples whose weight pi_prox / mu is above the threshold, and divides by the rest. The
    # nearest of ours has the same threshold and cuts weights to it.
    Translation(
        "algorithm.behave_weight_threshold", Real(above=0), "train", {"correction": "tis", "max_weight": None}
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
        values = dict(result.get(translation.level) or {})
        if _contradicts(translation, values):
            continue
        defaults = {name: value if fixed is None else fixed for name, fixed in translation.settings.items()}
        result[translation.level] = {**defaults, **values}
    return result


def translations(cfg: Mapping[str, Any], block: Mapping[str, Any]) -> list[str]:
    """Return a line for each key of RLinf's that `translated` translates, or why one has no effect."""
    lines = []
    for translation, value in _present(cfg):
        values = dict(block.get(translation.level) or {})
        path = f"async.{translation.level}"
        defaults = {name: value if fixed is None else fixed for name, fixed in translation.settings.items()}
        if _contradicts(translation, values) or not defaults.keys() - values.keys():
            settings = ", ".join(f"{path}.{name}={values[name]}" for name in defaults if name in values)
            lines.append(f"{translation.key}={value} has no effect: {settings} says otherwise")
        else:
            text = ", ".join(f"{path}.{name}={values.get(name, defaults[name])}" for name in defaults)
            lines.append(f"{translation.key}={value} -> {text}")
    return lines


def _present(cfg: Mapping[str, Any]) -> list[tuple[Translation, Any]]:
    """The translations that apply, with the values of RLinf's keys."""
    if lookup(cfg, "algorithm.loss_type") != ASYNC_PPO:
        return []
    pairs = ((translation, lookup(cfg, translation.key)) for translation in KEY_TRANSLATIONS)
    return [(translation, value) for translation, value in pairs if value is not None]


def _contradicts(translation: Translation, values: Mapping[str, Any]) -> bool:
    """Return True if the block asks for something else than the setting that the translation is part of."""
    return any(
        fixed is not None and name in values and values[name] != fixed
        for name, fixed in translation.settings.items()
    )
