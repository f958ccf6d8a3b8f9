"""Errors of Hydra and OmegaConf with a config and its overrides, in one sentence each, with the remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlinf_async.core.config_keys import BLOCK_NAME, clipped, did_you_mean, dotted, nearest, nearest_key
from rlinf_async.hosts.host import counterparts, every
from rlinf_async.observe.read_files import read_named
from rlinf_async.observe.yaml_data import MAX_YAML_BYTES

NO_KEY = re.compile(r"(?:Could not override|Error merging override) '(?P<key>[^'=]+)")
ALREADY_THERE = re.compile(r"Could not append to config. An item is already at '(?P<key>[^']+)'")
NO_DELETION = re.compile(r"Could not delete '(?P<group>[^'=]+)[^']*'. No match in the defaults list")
MERGING = re.compile(r"Error merging override '?(?P<key>[^'=]+)")
GROUP_PATTERN = re.compile(r"Could not find '(?P<group>[^']+)/(?P<option>[^'/]+)'")

SWEEP_PATTERN = re.compile(r"(?:Ambiguous value for argument|Sweep parameters) '(?P<override>[^']+)'")
NO_GROUP_CHOICE = "Config group override must be"
LIST_PATTERN = re.compile(r"[\w.+-]+(,[\w.+-]+)*")
UNSET_PATTERN = re.compile(r"[Ee]nvironment variable '(?P<name>[^']+)' not found")
KEY_PATTERN = re.compile(r"^\s*full_key: (?P<key>\S+)", re.MULTILINE)

INTERPOLATED_KEY = re.compile(r"\$\{(?P<key>[\w.]+)\}")
APPEARS_TWICE = re.compile(r"(?P<group>\S+) appears more than once in the final defaults list")
NO_DEFAULTS = re.compile(r"defaults must be a list|Unsupported type in defaults")
NO_HYDRA_BLOCK = "is not a subclass of HydraConf"
ITEM_OF_LIST = re.compile(r"invalid literal for int\(\) with base 10: '(?P<name>[^']+)'")
NO_BLOCK = re.compile(r"node `(?P<key>[^`]+)` is not a container and thus cannot contain `(?P<name>[^`]+)`")
NO_VALUE = re.compile(r"Missing mandatory value: (?P<key>[^\s,]+)")
NO_HYDRA = "HydraConfig was not set"
NO_SOURCE = re.compile(r"Interpolation key '(?P<key>[^']+)' not found")
UNKNOWN_RESOLVER = re.compile(r"Unsupported interpolation type (?P<name>\S+)")
LIST_FOR_BLOCK = "Cannot merge DictConfig with ListConfig"
CIRCLE = "Recursive interpolation detected"
MOST_NAMES = 24
"""Most configs that an answer lists."""


def recognised_file(path: Path) -> str:
    """Return a host's advice (`recognised`) on a config file that cannot be composed; empty if there is none.

    The file is read without its `defaults`, which may belong to a package that is not installed.
    """
    try:
        cfg = OmegaConf.create(yaml.safe_load(read_named(path, limit=MAX_YAML_BYTES)))
    except (OSError, OmegaConfBaseException, yaml.YAMLError):
        return ""  # composing the file raises an error with the reason
    if not isinstance(cfg, DictConfig):
        return ""
    return next((advice for host in every() if (advice := host.recognised(cfg))), "")


def several(override: str) -> str:
    """Return the advice on an override with several values, which would be a sweep for Hydra."""
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
    """Return the sentence on a missing environment variable of a config."""
    where = f" in {key}" if key else ""
    return f"the config asks{where} for the variable {variable}, which is not set: export {variable}=..."


def _key_of(error: Exception) -> str | None:
    """The dotted key in an error of OmegaConf."""
    match = KEY_PATTERN.search(str(error))
    return match["key"] if match else getattr(error, "full_key", None)


def sentence(
    error: Exception,
    name: str,
    *,
    overrides: Sequence[str],
    known_configs: Iterable[str],
    known_keys: Callable[[], Mapping[str, Any]],
) -> str:
    """Return the sentence on an error in the config `name` or in `overrides`, with the remedy.

    `known_keys` returns the config without the overrides, by dotted keys; it is called only if a key is
    unknown.
    """
    if isinstance(error, OverrideParseException):
        override = _written(str(error.override), overrides)
        example = "write the path without ~" if "=~" in override else "one looks like async.mode=full"
        return f"the override {clipped(override)!r} cannot be read; {example}"
    if isinstance(error, MissingConfigException):
        return _missing(error, name, list(known_configs))
    if sweep := SWEEP_PATTERN.search(str(error)):
        return several(_written(sweep["override"], overrides))
    if group := NO_DELETION.search(str(error)):
        name = group["group"]
        other = "async.mode=off" if name == BLOCK_NAME else f"{name}.KEY=..."
        return f"no defaults list chooses {name}, so that ~{name} takes nothing out; use {other}"
    if there := ALREADY_THERE.search(str(error)):
        return f"the config has {there['key']} already; write {there['key']}=... without the +"
    if isinstance(error, HydraException) and (block := _block_not_fitting(error, overrides)):
        return block
    if "Could not override ''" in str(error):
        return "an override has no key before its =; one looks like async.mode=full"
    unknown = NO_KEY.search(str(error))
    if isinstance(error, HydraException) and unknown:
        if not any(one.lstrip("+~").startswith(unknown["key"]) for one in overrides):
            return (
                f"a defaults list overrides {unknown['key']}, which no defaults list has chosen; write it "
                "there without the word override"
            )
        return _no_key(unknown["key"], overrides, known_keys())
    return unreadable_config(error)


def _block_not_fitting(error: HydraException, overrides: Sequence[str]) -> str:
    """Return the sentence on an override whose value does not fit the block or list that is there; "" for
    another error."""
    cause, merging = error.__cause__, MERGING.search(str(error))
    match = merging or NO_KEY.search(str(error))
    if match is None or not isinstance(cause, Exception):
        return ""
    key, inner = match["key"].lstrip("+"), _key_of(cause) or ""
    override = _written(f"{key}=", overrides).lstrip("+")
    if inner.startswith(f"{key}."):
        return (
            f"{key} has no {inner.removeprefix(f'{key}.')}, and an override adds no key to a block; to "
            f"replace the block: ~{key} '+{override}'"
        )
    if merging:
        return (
            f"{clipped(override)} does not fit {key}, which has a value of another kind; give it such a value"
        )
    return ""


def unreadable_config(error: Exception) -> str:
    """Return the first line of an error of Hydra or OmegaConf, with the key; or a sentence on an unset
    variable."""
    text = str(error).strip()
    if not text and isinstance(error.__cause__, Exception):
        return unreadable_config(error.__cause__)
    if of_hydra := _of_hydras_keys(text):
        return of_hydra
    if unset := UNSET_PATTERN.search(text):
        return _not_set(unset["name"], _key_of(error))
    if LIST_FOR_BLOCK in text:
        where = f"{place} has a list" if (place := _merged_key(error)) else "a list stands"
        return f"{where} where another file of the config has a block of keys, or the reverse; write a block"
    if resolver := UNKNOWN_RESOLVER.search(text):
        key = _asking_key(error, f"${{{resolver['name']}:") or "KEY"
        return (
            f"{key} asks for the resolver {resolver['name']}, which is not registered here; write the value, "
            f"as in {key}=..."
        )
    if source := NO_SOURCE.search(text):
        key = _asking_key(error, f"${{{source['key']}}}") or "the config"
        return (
            f"{key} reads {source['key']}, which the config does not have; add it, or write a value for {key}"
        )
    if no_value := NO_VALUE.search(text):
        return f"{no_value['key']}=??? has no value, and another key needs it; set {no_value['key']}=..."
    if NO_HYDRA in text:
        key = _asking_key(error, "${hydra:") or "KEY"
        return f"{key} asks for a value that only Hydra's own scripts have; write it out, as in {key}=..."
    if no_block := NO_BLOCK.search(text):
        reader = _key_of(error) or "the config"
        return f"{no_block['key']} must be a block of keys: {reader} reads its {no_block['name']}"
    lines = text.splitlines() or [type(error).__name__]
    first = " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(".")
    reader = _key_of(error) or ""
    # As a word: the letters of a short key are in every sentence.
    is_named = reader and re.search(rf"['` ]{re.escape(reader)}(?=['`.,:]|$)", first)
    sentence = f"{first}, in {reader}" if reader and not is_named else first
    return f"{sentence}; write a value there" if first.startswith(CIRCLE) else sentence


def _of_hydras_keys(text: str) -> str:
    """Return the sentence on an error in the keys `defaults` and `hydra`; "" for another error."""
    if twice := APPEARS_TWICE.search(text):
        group = twice["group"]
        return f"the defaults lists choose {group} twice; take one out, or write override {group}: ..."
    if NO_DEFAULTS.search(text):
        return "defaults must be a list of configs, as in defaults: [metaworld_ppo_mlp, _self_]"
    if NO_HYDRA_BLOCK in text:
        return "hydra must be a block of keys: Hydra reads it; take it out, or give it another name"
    return ""


def _asking_key(error: Exception, text: str) -> str | None:
    """The key with `text` in its value, as it is written; OmegaConf names a key that reads it, perhaps by way
    of others."""
    key, node = _key_of(error), getattr(error, "parent_node", None)
    if node is None:
        return key
    written: Any = OmegaConf.to_container(node._get_root(), resolve=False)
    values = dotted(written)
    if key and text in str(values.get(key)):
        return key
    return next((name for name, value in values.items() if text in str(value)), key)


def _merged_key(error: BaseException | None) -> str:
    """The key that OmegaConf was merging when it raised an error, which does not name it; "" if unknown."""
    found = ""
    while error is not None:
        for frame, _ in walk_tb(error.__traceback__):
            holder: Any = frame.f_locals.get("self")
            if frame.f_code.co_name == "_merge_with" and hasattr(holder, "_get_full_key"):
                found = str(holder._get_full_key(None)) or found
        error = error.__cause__ or error.__context__
    return found


def refusal(error: ValueError, overrides: Sequence[str]) -> str:
    """Return the message of a ValueError; Hydra's message for `async=true` is replaced by a clearer one."""
    if of_hydra := _of_hydras_keys(str(error)):
        return of_hydra
    if item := ITEM_OF_LIST.fullmatch(str(error)):
        wrong = next((one for one in overrides if f".{item['name']}" in _key_in(one)), item["name"])
        return f"{wrong} sets a key of a list, which has none; set the whole list, or write a block for it"
    if NO_GROUP_CHOICE not in str(error):
        return str(error)
    if nameless := next((one for one in overrides if not _key_in(one).strip()), None):
        return f"the override {clipped(nameless)!r} has no key before its =; one looks like async.mode=full"
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
    folder = f"{name.rpartition('/')[0]}/"
    if error.missing_cfg_file not in (None, name):
        if folder != "/" and str(error.missing_cfg_file).startswith(folder):
            inner = str(error.missing_cfg_file).removeprefix(folder)
            return (
                f"{name} asks for {inner} of its own folder, where it is not; write /{inner} in its defaults,"
                " with the slash, if it is elsewhere"
            )
        return f"{name} asks for {error.missing_cfg_file}, which is nowhere on the search path"
    near = nearest(name, names)
    hint = f" (did you mean {near!r}?)" if near else ""
    more = f" and {len(names) - MOST_NAMES} others" if len(names) > MOST_NAMES else ""
    return f"there is no config {name!r}{hint}; there is {', '.join(names[:MOST_NAMES]) or 'none'}{more}"


def _no_key(key: str, overrides: Sequence[str], keys: Mapping[str, Any]) -> str:
    above = {key[:place] for place, letter in enumerate(key) if letter == "."}
    if key in keys:  # another override has put one value in the place of a block
        other = next((one for one in overrides if _key_in(one) in above), f"an override of {key}")
        return f"{other} leaves no {key} to be set; leave out one of the two overrides"
    for block, value in keys.items():
        if block in above and (source := INTERPOLATED_KEY.fullmatch(str(value))):
            return (
                f"the config has no {key}: its {block} is {value}; set {source['key']}"
                f"{key.removeprefix(block)}, or write {block} out in the YAML"
            )
    near = next((name for name in counterparts(key) if name in keys), None) or nearest_key(key, keys)
    hint = f"did you mean {near}?" if near else f"+{_written(key, overrides)} would add it"
    return f"the config has no {key}; {hint}"


def _key_in(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _written(text: str, overrides: Sequence[str]) -> str:
    """Return the override as the user wrote it, from Hydra's form of it."""
    bare = text.lstrip("+")
    return next((one for one in overrides if one.lstrip("+").startswith(bare)), bare)
