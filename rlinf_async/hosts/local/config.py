"""A config of the local host, read and checked. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib.metadata import entry_points
from operator import attrgetter
from typing import Any

from omegaconf import DictConfig

from rlinf_async.config import AsyncConfig
from rlinf_async.core.config_keys import nearest, shortened
from rlinf_async.entry_points import ENVS_GROUP, MODELS_GROUP
from rlinf_async.hosts.async_block import BLOCK_KEY, plain, read_block
from rlinf_async.hosts.judge.keys import Table, counterparts, own_sections
from rlinf_async.hosts.judge.presence import directory_reasons, model_reasons
from rlinf_async.hosts.judge.reasons import Reason, refuse, unknown
from rlinf_async.hosts.local.settings import ROWS, SETTING_KINDS, LocalSettings
from rlinf_async.hosts.tasks import settled, task_reasons

UNSERVED_KEYS = {
    "advanced.stall_s": "nobody outside of the process watches it",
    "survive.process_restarts": "there is one process, and the run ends with it",
    "advanced.silent_s": "there is one process, and nobody asks it for an answer",
    "advanced.fit_shards": "simulators have no process each, so that no number of shards is measured",
    "advanced.shared_group_scene": "only RLinf's LIBERO draws scenes beside initial states",
    "advanced.keep_checkpoints": "the policy is saved once, after the last step",
}
"""Keys of the `async` block that mean nothing where all loops are in one process."""
DEFAULTS = {
    f"settings.{each.name}": each.default for each in fields(LocalSettings) if each.name in SETTING_KINDS
}
TABLE = Table(ROWS, default_of=DEFAULTS.get, is_whole=True)
"""Every key of a local config; a setting that is absent has its default, and null counts as absent."""


def settings_of(cfg: DictConfig) -> LocalSettings:
    """The settings of a config of this host.

    Raises:
        ValueError: a key that nothing reads or that is not served, a value that is none of its kind, or
            settings that do not fit together.
    """
    values = plain(cfg)
    # Alone and first: with something else in a block's place, the lookups below would fail on their own.
    refuse(TABLE.block_reasons(values))
    refuse([*TABLE.reasons(values), *_unread_key_reasons(values)])
    asynchrony = AsyncConfig.from_mapping(read_block(values))
    refuse(list(_unserved(asynchrony)))
    asynchrony = settled(asynchrony, values["env"])
    settings = values.get("settings") or {}
    # A misspelt key that is null or an empty block says nothing, and is none of the table's unknown keys.
    known = {name: value for name, value in settings.items() if name in SETTING_KINDS}
    return LocalSettings(asynchrony=asynchrony, **known)


def _unread_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the keys of `cfg` (plain data) that nothing reads, with those that were meant."""
    for key, value in TABLE.unknown(cfg).items():
        section, _, name = key.partition(".")
        if section == "settings":
            near = nearest(name, SETTING_KINDS)
            hint = f"; did you mean settings.{near}?" if near else ""
            yield Reason(f"unknown key {key}{hint}", f"~{key}")
            continue
        # Of other blocks only the frameworks' own words are more than a user's: they would change nothing.
        if other := next((one for one in counterparts(key) if TABLE.find(one)), None):
            yield Reason(
                f"a run of the local host does not read {key}={shortened(value)}; use {other}", f"~{key}"
            )


def own_blocks(cfg: DictConfig) -> Iterator[str]:
    """Yield a note for each block at the top of a config that is the user's own."""
    sections = {*TABLE.sections, BLOCK_KEY}
    yield from own_sections(cfg, sections, framework="the local host")


def _unserved(asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for every key that is not served. A value that says what is done anyway is none."""
    usual = AsyncConfig()
    for key, why in UNSERVED_KEYS.items():
        value = attrgetter(key)(asynchrony)
        if value not in (attrgetter(key)(usual), 0):
            yield Reason(
                f"async.{key}={value!r} is not served by the local host: {why}; leave it out",
                f"~async.{key}",
            )


def checked(cfg: DictConfig) -> LocalSettings:
    """The settings of a run that can begin on this machine.

    Raises:
        ValueError: as of `settings_of`; or what the config names is not here.
    """
    settings, values = settings_of(cfg), plain(cfg)
    refuse(list(_declared_part_reasons(values)))
    refuse(
        [
            *directory_reasons(str(cfg.run_dir), key="run_dir"),
            *model_reasons(values["model"], key="model"),
            *task_reasons(values["env"], settings.asynchrony, key="env"),
        ]
    )
    return settings


def _declared_part_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the classes in `cfg` (plain data) that no package declares, importing none of them."""
    for section, key, group in (("env", "env_class", ENVS_GROUP), ("model", "model_type", MODELS_GROUP)):
        name, names = cfg[section][key], sorted(entry_points(group=group).names)
        if name not in names:
            yield unknown(f"{section}.{key}", name, names, f"an entry point of {group}")
    if cfg["env"].get("auto_reset"):
        yield Reason(
            "env.auto_reset=true: a rollout of the local host begins with a reset; set it to false",
            "env.auto_reset=false",
        )
