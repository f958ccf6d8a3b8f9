"""Remarks on a config of the local host, which `explain` and `train` both say."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from rlinf_async.hosts.async_block import plain, read_block, unused_settings
from rlinf_async.hosts.kit.unread import misspelt_env_keys, unread_keys
from rlinf_async.hosts.local.config import TABLE
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.remarks import own_sections
from rlinf_async.hosts.remarks import remarks as run_remarks


def remarks_of(cfg: DictConfig, settings: LocalSettings) -> list[str]:
    """Return the remarks on a config that can run with `settings`."""
    values, unresolved = plain(cfg), OmegaConf.to_container(cfg)
    env_keys = ("env_class", "max_episode_steps", *settings.usual_env)
    return [
        *unused_settings(read_block(cfg), settings.asynchrony.levels),
        *own_sections(cfg, TABLE.sections, framework="the local host"),
        *unread_keys(values["model"], key="model"),
        *misspelt_env_keys(values["env"], key="env", own=env_keys, unresolved=unresolved),
        *run_remarks(settings.run, auto_reset=False),
    ]
