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
from rlinf_async.hosts.judge.presence import directory_reasons, model_reasons
from rlinf_async.hosts.judge.reasons import Reason, refuse, unknown_reason
from rlinf_async.hosts.judge.table import Table, own_sections
from rlinf_async.hosts.local.settings import ROWS, SETTING_KINDS, LocalSettings
from rlinf_async.hosts.tasks import settled, task_reasons

UNSERVED_KEYS = {
    "advanced.stall_s": "no other process watches the run",
    "survive.process_restarts": "there is one process, and the run ends with it",
    "advanced.silent_s": "there is one process, and no other watches it",
    "advanced.fit_shards": "simulators have no process each, so that no number of shards is measured",
    "advanced.shared_group_scene": "only RLinf's LIBERO draws scenes beside initial states",
    "advanced.gpu_shares": "there is one process, and it has its GPU for itself",
    "advanced.keep_checkpoints": "the policy is saved once, after the last step",
}
"""Keys of the `async` block that have no meaning in a run of one process, with the reasons."""
SETTING_DEFAULTS = {
    f"settings.{each.name}": each.default for each in fields(LocalSettings) if each.name in SETTING_KINDS
}
TABLE = Table(ROWS, default_of=SETTING_DEFAULTS.get, knows_all_defaults=True)
"""Every key of a local config; a setting that is absent has its default, and null counts as absent."""


def settings_of(cfg: DictConfig) -> LocalSettings:
    """Return the settings of a config of this host.

    Raises:
        ValueError: a key is unknown or not served, a value is not of its key's kind, or settings do not fit
            together.
    """
    values = plain(cfg)
    # First: without the blocks, the lookups below would fail with other errors.
    refuse(TABLE.block_reasons(values))
    refuse([*TABLE.reasons(values), *_unread_key_reasons(values)])
    asynchrony = AsyncConfig.from_mapping(read_block(values))
    refuse(list(_unserved_reasons(asynchrony)))
    asynchrony = settled(asynchrony, values["env"])
    settings = values.get("settings") or {}
    # A misspelt key that is null or an empty block has no effect, and is not reported as unknown.
    known = {name: value for name, value in settings.items() if name in SETTING_KINDS}
    return LocalSettings(asynchrony=asynchrony, **known)


def _unread_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each unknown key of `cfg` (plain data), with the key that was probably meant."""
    for key, value in TABLE.unknown(cfg).items():
        section, _, name = key.partition(".")
        if section == "settings":
            near = nearest(name, SETTING_KINDS)
            hint = f"; did you mean settings.{near}?" if near else ""
            yield Reason(f"unknown key {key}{hint}", f"~{key}")
            continue
        # Other blocks belong to the user, except keys of a framework, which would have no effect here.
        if other := TABLE.counterpart(key):
            yield Reason(
                f"a run of the local host does not read {key}={shortened(value)}; use {other}", f"~{key}"
            )


def own_blocks(cfg: DictConfig) -> Iterator[str]:
    """Yield a note for each top-level block of a config that is the user's own."""
    sections = {*TABLE.sections, BLOCK_KEY}
    yield from own_sections(cfg, sections, framework="the local host")


def _unserved_reasons(asynchrony: AsyncConfig) -> Iterator[Reason]:
    """Yield a reason for every key of `async` that this host does not serve, unless it has its default."""
    usual = AsyncConfig()
    for key, why in UNSERVED_KEYS.items():
        value = attrgetter(key)(asynchrony)
        if value not in (attrgetter(key)(usual), 0):
            yield Reason(
                f"async.{key}={value!r} is not served by the local host: {why}; leave it out",
                f"~async.{key}",
            )


def checked(cfg: DictConfig) -> LocalSettings:
    """Return the settings of a run that can begin on this machine.

    Raises:
        ValueError: as `settings_of`; or a class or a folder that the config names is missing.
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
    """Yield a reason for each class in `cfg` (plain data) that no package declares; no class is imported."""
    for section, key, group in (("env", "env_class", ENVS_GROUP), ("model", "model_type", MODELS_GROUP)):
        name, names = cfg[section][key], sorted(entry_points(group=group).names)
        if name not in names:
            yield unknown_reason(f"{section}.{key}", name, names, f"an entry point of {group}")
    if cfg["env"].get("auto_reset"):
        yield Reason(
            "env.auto_reset=true: a rollout of the local host begins with a reset; set it to false",
            "env.auto_reset=false",
        )
