"""Remarks on a config of the local host, which `explain` and `train` both say."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from rlinf_async.hosts.async_block import plain, read_block, unused_settings
from rlinf_async.hosts.kit.unread import misspelt_env_keys, unread_keys
from rlinf_async.hosts.local.config import TABLE
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.remarks import own_sections
from rlinf_async.hosts.remarks import remarks as run_remarks

ENV_KEYS = (
    "auto_reset",
    "env_class",
    "group_size",
    "ignore_terminations",
    "is_eval",
    "max_episode_steps",
    "seed",
    "total_num_envs",
)
"""The keys of `env` that the host reads, or completes for environments."""


def remarks_of(cfg: DictConfig, settings: LocalSettings) -> list[str]:
    """Return the remarks on a config that can run with `settings`."""
    return [
        *unused_settings(read_block(cfg), settings.asynchrony.levels),
        *own_sections(cfg, TABLE.sections, framework="the local host"),
        *unread_keys(plain(cfg)["model"], key="model"),
        *misspelt_env_keys(
            plain(cfg)["env"], key="env", own=ENV_KEYS, unresolved=OmegaConf.to_container(cfg)
        ),
        *run_remarks(settings.run, auto_reset=False),
    ]
