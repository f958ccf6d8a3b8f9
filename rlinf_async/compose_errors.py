"""Errors of Hydra in one sentence each, with what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from hydra.errors import HydraException, MissingConfigException, OverrideParseException

from rlinf_async.core.names import did_you_mean, nearest
from rlinf_async.hosts.kit.synonyms import counterparts

NO_KEY = re.compile(r"(?:Could not override|Error merging override) '(?P<key>[^'=]+)")
GROUP_PATTERN = re.compile(r"Could not find '(?P<group>[^']+)/(?P<option>[^'/]+)'")

SWEEP_PATTERN = re.compile(r"(?:Ambiguous value for argument|Sweep parameters) '(?P<override>[^']+)'")
NO_GROUP_CHOICE = "Config group override must be"
LIST_PATTERN = re.compile(r"[\w.+-]+(,[\w.+-]+)*")
UNSET_PATTERN = re.compile(r"[Ee]nvironment variable '(?P<name>[^']+)' not found")
KEY_PATTERN = re.compile(r"^\s*full_key: (?P<key>\S+)", re.MULTILINE)

MOST_NAMES = 24
"""Most configs that an answer lists."""


def several(override: str) -> str:
    """Return the advice on an override with several values, which Hydra runs one after the other."""
    key, _, values = override.lstrip("+").partition("=")
    if key in ("async", "async.mode"):
        way = f"--modes {values}"
    else:
        way = f"--vary {key}={values if LIST_PATTERN.fullmatch(values) else 'A,B'}"
    return (
        f"{override} has several values, and this command takes one; to compare them: "
        f"rlinf-async sweep CONFIG {way}"
    )


def _not_set(variable: str, key: str | None) -> str:
    """Return the sentence on an environment variable that a config needs and that is not set."""
    where = f" in {key}" if key else ""
    return f"the config asks{where} for the variable {variable}, which is not set: export {variable}=..."


def _key_of(error: Exception) -> str | None:
    """The dotted key that OmegaConf's error is about."""
    found = KEY_PATTERN.search(str(error))
    return found["key"] if found else getattr(error, "full_key", None)


def sentence(
    error: Exception,
    name: str,
    *,
    overrides: Sequence[str],
    known_configs: Iterable[str],
    known_keys: Callable[[], Iterable[str]],
) -> str:
    """Return the sentence on what was wrong with the config `name` or with `overrides`, and what would be
    right.

    `known_keys` are the dotted keys that the config has without the overrides; they are asked for only where
    a key is unknown.
    """
    if isinstance(error, OverrideParseException):
        override = _written(str(error.override), overrides)
        return f"the override {override!r} cannot be read; one looks like async.mode=full"
    if isinstance(error, MissingConfigException):
        return _missing(error, name, list(known_configs))
    if sweep := SWEEP_PATTERN.search(str(error)):
        return several(_written(sweep["override"], overrides))
    unknown = NO_KEY.search(str(error))
    if isinstance(error, HydraException) and unknown:
        return _no_key(unknown["key"], overrides, list(known_keys()))
    return unreadable(error)


def unreadable(error: Exception) -> str:
    """The first line of what Hydra or OmegaConf says, with the key; of an unset variable, a sentence."""
    text = str(error).strip()
    if not text and isinstance(error.__cause__, Exception):
        return unreadable(error.__cause__)
    if unset := UNSET_PATTERN.search(text):
        return _not_set(unset["name"], _key_of(error))
    lines = text.splitlines() or [type(error).__name__]
    first = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(".")
    key = _key_of(error)
    return f"{first}, in {key}" if key and key not in first else first


def refusal(error: ValueError, overrides: Sequence[str]) -> str:
    """Return the message of a ValueError; Hydra's message for `async=true` in other words."""
    if NO_GROUP_CHOICE not in str(error):
        return str(error)
    wrong = next((one for one in overrides if one.lstrip("+").startswith("async=")), None)
    if wrong is None:
        return f"one of {', '.join(overrides)} chooses a group of configs, and names none of them"
    off = wrong.partition("=")[2].lower() in ("false", "no", "null")
    return f"{wrong} names no preset; use async.mode={'off' if off else 'full'}"


def _missing(error: MissingConfigException, name: str, names: list[str]) -> str:
    group = GROUP_PATTERN.search(str(error))
    if group and error.options:
        hint = did_you_mean(group["option"], error.options)
        return f"{group['group']}={group['option']} is none of {', '.join(error.options)}{hint}"
    if error.missing_cfg_file not in (None, name):
        return f"{name} asks for {error.missing_cfg_file}, which is nowhere on the search path"
    near = nearest(name, names)
    hint = f" (did you mean {near!r}?)" if near else ""
    more = f" and {len(names) - MOST_NAMES} others" if len(names) > MOST_NAMES else ""
    return f"there is no config {name!r}{hint}; there is {', '.join(names[:MOST_NAMES]) or 'none'}{more}"


def _no_key(key: str, overrides: Sequence[str], keys: list[str]) -> str:
    near = next((name for name in counterparts(key) if name in keys), None) or _nearest_key(key, keys)
    hint = f"did you mean {near}?" if near else f"+{_written(key, overrides)} would add it"
    return f"the config has no {key}; {hint}"


def _nearest_key(key: str, keys: list[str]) -> str | None:
    """Return the nearest key of the same section; else of all sections."""
    section = key.rpartition(".")[0]
    beside = [one for one in keys if one.rpartition(".")[0] == section]
    return nearest(key, beside, cutoff=0.75) or nearest(key, keys, cutoff=0.8)


def _written(text: str, overrides: Sequence[str]) -> str:
    """The override that the user has given, where Hydra names it in its own way."""
    bare = text.lstrip("+")
    return next((one for one in overrides if one.lstrip("+").startswith(bare)), bare)
