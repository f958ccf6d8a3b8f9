"""A config of the local host, read and checked, and the remarks on it. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.config import BLOCK_KEY, AsyncConfig
from rlinf_async.config.checked import checked_config
from rlinf_async.core.config_keys import dotted, misspelt, shortened
from rlinf_async.hosts.async_block import plain, read_block, unused_settings
from rlinf_async.hosts.judge.presence import environment_reasons, file_reasons, folder_reasons, model_reasons
from rlinf_async.hosts.judge.reasons import Reason, refuse
from rlinf_async.hosts.judge.table import Table
from rlinf_async.hosts.local.settings import ROWS, SETTING_KINDS, LocalSettings
from rlinf_async.hosts.remarks import misspelt_env_keys, own_sections, unread_keys
from rlinf_async.hosts.remarks import remarks as run_remarks
from rlinf_async.hosts.tasks import settled, task_reasons

ASYNC_DEFAULTS = dotted({BLOCK_KEY: asdict(AsyncConfig())})
SETTING_DEFAULTS = {
    f"settings.{each.name}": each.default for each in fields(LocalSettings) if each.name in SETTING_KINDS
}
TABLE = Table(ROWS, default_of=SETTING_DEFAULTS.get, knows_all_defaults=True)
"""Every key of a local config; a setting that is absent has its default, and null counts as absent."""


def settings_of(cfg: DictConfig) -> LocalSettings:
    """Return the settings of a config of this host.

    Raises:
        ValueError: a key or a value is not served, or settings do not fit together.
    """
    values = plain(cfg)
    # First: without the blocks, the lookups below would fail with other errors.
    refuse(TABLE.block_reasons(values))
    unserved = TABLE.refused_reasons(values, "the local host", usual=ASYNC_DEFAULTS)
    unset = TABLE.unset_reasons(OmegaConf.missing_keys(cfg))
    refuse([*TABLE.reasons(values), *unset, *unserved, *_unread_key_reasons(values)])
    asynchrony = settled(checked_config(read_block(values)), values["env"])
    settings = values.get("settings") or {}
    # A misspelt key that is null or an empty block has no effect, and is not reported as unknown.
    known = {name: value for name, value in settings.items() if name in SETTING_KINDS and value is not None}
    return LocalSettings(asynchrony=asynchrony, **known)


def _unread_key_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield a reason for each unknown key of `cfg` (plain data), with the key that was probably meant."""
    for key, value in TABLE.unknown(cfg).items():
        section, _, name = key.partition(".")
        if section == "settings":
            if name.partition(".")[0] not in SETTING_KINDS:  # else a block for a value: its kind refuses it
                near = misspelt(name, SETTING_KINDS)
                hint = f"; did you mean settings.{near}?" if near else "; remove it"
                yield Reason(f"unknown key {key}{hint}", f"~{key}")
        # Other blocks belong to the user, except keys of a framework, which would have no effect here.
        elif other := TABLE.counterpart(key):
            yield Reason(
                f"a run of the local host does not read {key}={shortened(value)}; use {other}", f"~{key}"
            )


def checked(cfg: DictConfig) -> LocalSettings:
    """Return the settings of a run that can begin on this machine.

    Raises:
        ValueError: as `settings_of`; or a class or a folder that the config names is missing.
    """
    settings, values = settings_of(cfg), plain(cfg)
    refuse(
        [
            *environment_reasons({"env": values["env"]}, {"model": values["model"]}),
            *folder_reasons(values, TABLE),
            *model_reasons(values["model"], key="model"),
            *file_reasons(values, TABLE),
            *task_reasons(values["env"], settings.asynchrony, key="env"),
        ]
    )
    return settings


def remarks_of(cfg: DictConfig, settings: LocalSettings) -> list[str]:
    """Return what `explain` and `train` remark on a config that can run with `settings`."""
    values, unresolved = plain(cfg), OmegaConf.to_container(cfg)
    env_keys = ("env_class", "max_episode_steps", *settings.usual_env)
    return [
        *unused_settings(read_block(cfg), settings.asynchrony.levels),
        *own_sections(cfg, TABLE.sections, framework="the local host"),
        *unread_keys(values["model"], key="model"),
        *misspelt_env_keys(values["env"], key="env", own=env_keys, unresolved=unresolved),
        *run_remarks(settings.run, auto_reset=False),
    ]
