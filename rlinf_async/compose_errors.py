"""What Hydra could not compose, in one sentence that says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException

from rlinf_async.core.names import did_you_mean, nearest
from rlinf_async.hosts.kit.synonyms import counterparts

NO_KEY = re.compile(r"(?:Could not override|Error merging override) '(?P<key>[^'=]+)")
GROUP = re.compile(r"Could not find '(?P<group>[^']+)/(?P<option>[^'/]+)'")


def sentence(
    error: Exception,
    name: str,
    *,
    overrides: Sequence[str],
    known_configs: Iterable[str],
    known_keys: Callable[[], Iterable[str]],
) -> str:
    """What was wrong with the config `name` or with `overrides`, and what would be right.

    `known_keys` are the dotted keys that the config has without the overrides; they are asked for only where
    a key is unknown.
    """
    if isinstance(error, OverrideParseException):
        override = _written(str(error.override), overrides)
        return f"the override {override!r} cannot be read; one looks like async.mode=full"
    if isinstance(error, MissingConfigException):
        return _missing(error, name, list(known_configs))
    first = str(error).strip().splitlines()[0].rstrip(".")
    unknown = NO_KEY.search(str(error))
    if isinstance(error, HydraException) and unknown:
        return _no_key(unknown["key"], overrides, list(known_keys()))
    return first


def _missing(error: MissingConfigException, name: str, names: list[str]) -> str:
    group = GROUP.search(str(error))
    if group and error.options:
        hint = did_you_mean(group["option"], error.options)
        return f"{group['group']}={group['option']} is none of {', '.join(error.options)}{hint}"
    if error.missing_cfg_file not in (None, name):
        return f"{name} asks for {error.missing_cfg_file}, which is nowhere on the search path"
    near = nearest(name, names)
    hint = f" (did you mean {near!r}?)" if near else ""
    return f"there is no config {name!r}{hint}; there is {', '.join(names) or 'none'}"


def _no_key(key: str, overrides: Sequence[str], keys: list[str]) -> str:
    near = next((name for name in counterparts(key) if name in keys), None) or _nearest_key(key, keys)
    hint = f"did you mean {near}?" if near else f"+{_written(key, overrides)} would add it"
    return f"the config has no {key}; {hint}"


def _nearest_key(key: str, keys: list[str]) -> str | None:
    """Of the keys that are in the same section; then of all."""
    section = key.rpartition(".")[0]
    beside = [one for one in keys if one.rpartition(".")[0] == section]
    return nearest(key, beside, cutoff=0.75) or nearest(key, keys, cutoff=0.8)


def _written(text: str, overrides: Sequence[str]) -> str:
    """The override that the user has given, where Hydra names it in its own way."""
    bare = text.lstrip("+")
    return next((one for one in overrides if one.lstrip("+").startswith(bare)), bare)
