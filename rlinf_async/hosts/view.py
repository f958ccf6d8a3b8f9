"""Typed views of a config: a frozen dataclass with a field for each key that code reads, filled in once.

A field has one type, and one default where the key is absent or null, so that the code which reads it checks
for neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from rlinf_async.core.config_keys import entries


def key(name: str, default: Any = None) -> Any:
    """Return a field for the dotted key `name`; `default` stands for a key that is absent or null."""
    return field(default_factory=lambda: default, metadata={"key": name})


@dataclass(frozen=True, kw_only=True)
class View:
    """A config, read once."""

    cfg: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The whole config as plain data, for code that looks at every key."""

    @classmethod
    def of(cls, cfg: Mapping[str, Any]) -> Self:
        """Read `cfg` (plain data)."""
        held = entries(cfg)
        values = {each.name: held.get(each.metadata["key"]) for each in fields(cls) if each.metadata}
        return cls(cfg=cfg, **{name: value for name, value in values.items() if value is not None})
