"""The keys of one setting in the configs of all hosts, from the tables `settings` of their `keys.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path


def read_settings(file: Path) -> dict[str, str]:
    """Return the table `settings` of a host's file of rows: the host's keys by the name of the setting."""
    return tomllib.loads(file.read_text(encoding="utf-8"))["settings"]


@cache
def _setting_keys() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (setting, dotted keys) for every setting of every host; a setting has an item per host."""
    from rlinf_async.hosts.host import every  # it loads the hosts, and a worker has none

    pairs = (pair for host in every() for pair in host.setting_keys.items())
    return tuple((setting, tuple(keys.split())) for setting, keys in pairs)


def counterparts(key: str) -> list[str]:
    """Return the other keys, of all hosts, for the same setting as the dotted `key`."""
    settings = {setting for setting, keys in _setting_keys() if key in keys}
    return [name for setting, keys in _setting_keys() for name in keys if setting in settings and name != key]
