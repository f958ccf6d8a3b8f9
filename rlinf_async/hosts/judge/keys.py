"""The table of a host's config keys: the values that each key may have, and the effect of the key on a run.

The table yields the refusals of invalid values and unknown keys, the remarks about keys without effect, and
the pages that list keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any

from rlinf_async.core.config_keys import clipped, dotted, lookup, misspelt, nearest, shortened
from rlinf_async.hosts.host import every
from rlinf_async.hosts.judge.kinds import BLOCK_KIND, UNSTATED_KIND, kind_of_default
from rlinf_async.hosts.judge.reasons import Change, Reason
from rlinf_async.hosts.judge.rows import Key


def no_default(key: str) -> None:
    return None


class Table:
    """The keys of a host."""

    def __init__(
        self,
        rows: Sequence[Key],
        *,
        default_of: Callable[[str], Any] = no_default,
        knows_all_defaults: bool = False,
    ) -> None:
        """The first row that matches a key is its row; rows without a pattern come before others.

        Args:
            default_of: returns the default of a dotted key; None if it has none. A key without a kind in its
                row has the kind of its default.
            knows_all_defaults: True if the framework lists all of its defaults; a key without one may be
                null.
        """
        self.rows = tuple(sorted(rows, key=lambda row: row.is_pattern))
        self._default_of, self._knows_all_defaults = default_of, knows_all_defaults
        self._row_of_key: dict[str, Key | None] = {}

    @cached_property
    def refused(self) -> list[Key]:
        """The rows of keys with only one value that this host serves."""
        return [row for row in self.rows if row.fate == "refused"]

    @cached_property
    def names(self) -> list[str]:
        """The dotted names of keys in rows for a single key."""
        return [row.name for row in self.rows if not row.is_pattern]

    @cached_property
    def sections(self) -> frozenset[str]:
        """The names of the top-level sections of all rows."""
        return frozenset(row.name.partition(".")[0].rstrip("*?") for row in self.rows)

    def find(self, key: str) -> Key | None:
        """Return the row of a dotted key; None if the table has none."""
        if key not in self._row_of_key:
            wide = (row for row in self._wide if row.matches(key))
            self._row_of_key[key] = self._exact.get(key) or next(wide, None)
        return self._row_of_key[key]

    @cached_property
    def _single(self) -> list[Key]:
        """The rows for a single key that give its kind."""
        return [row for row in self.rows if row.kind is not UNSTATED_KIND and not row.is_pattern]

    @cached_property
    def _wide(self) -> list[Key]:
        """The rows that match several keys: patterns, and refused blocks, which match all keys inside."""
        return [row for row in self.rows if row.fate == "refused" or row.is_pattern]

    @cached_property
    def _exact(self) -> dict[str, Key]:
        # Reversed, so that the first of several rows with the same name is kept.
        return {row.name: row for row in reversed(self.rows)}

    @cached_property
    def _blocks(self) -> list[Key]:
        """A row for every section of the named keys, outer sections first."""
        required = _sections(row.name for row in self.rows if row.required)
        return [
            self._exact.get(name) or Key(name=name, kind=BLOCK_KIND, required=name in required)
            for name in sorted(_sections(self.names), key=lambda name: (name.count("."), name))
        ]

    def reasons(
        self, cfg: Mapping[str, Any], *, complete: bool = True, usual: Mapping[str, Any] | None = None
    ) -> list[Reason]:
        """Return a reason for each value of `cfg` (plain data) that is not of its key's kind.

        Args:
            complete: True if missing required keys are reasons, too.
            usual: values by dotted key that the framework computes from other keys of `cfg`; they are not
                judged a second time.
        """
        # Sections first: no key can be looked up below a section that is not a mapping.
        if blocks := self.block_reasons(cfg):
            return blocks
        judged = (*self._single, *self._open_rows(cfg, usual or {}))
        return [reason for row in judged if (reason := self._reason(row, cfg, complete=complete))]

    def block_reasons(self, cfg: Mapping[str, Any]) -> list[Reason]:
        """Return a reason for each section of `cfg` (plain data) that is not a block of keys."""
        held = (row for row in self._blocks if row.fate == "served" and _holds(cfg, row.name))
        return [reason for row in held if (reason := self._reason(row, cfg, complete=True))]

    def _open_rows(self, cfg: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[Key]:
        """Yield a row for each key of `cfg` that has only its default to tell its kind."""
        for key, value in dotted(cfg).items():
            row, default = self.find(key), self._default_of(key)
            is_open = row is None or (row.kind is UNSTATED_KIND and row.fate == "served")
            if is_open and default is not None and (value is None or value != usual.get(key)):
                yield Key(name=key, kind=kind_of_default(default))

    def _reason(self, row: Key, cfg: Mapping[str, Any], *, complete: bool) -> Reason | None:
        """Return the reason why the row's key cannot have its value in `cfg`; None if it can."""
        if (value := lookup(cfg, row.name)) is not None:
            return row.wrong(value)
        if not _holds(cfg, row.name):
            return row.missing() if row.required and complete else None
        default = self._default_of(row.name)
        is_unset = self._knows_all_defaults and default is None and not row.required
        if row.fate != "served" or row.nullable or is_unset or (row.required and not complete):
            return None
        return row.wrong_null(None if isinstance(default, Mapping) else default)

    def nulls(self, cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield each key of `cfg` (plain data) that is null, with the value that null stands for."""
        for row in self.rows:
            if row.null is not None and lookup(cfg, row.name) is None and _holds(cfg, row.name):
                yield row.name, row.null

    def without_nulls(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of `cfg` (plain data) with every null of `nulls` replaced by its value."""
        result = copy.deepcopy(dict(cfg))
        for key, value in self.nulls(cfg):
            section, _, name = key.rpartition(".")
            lookup(result, section)[name] = value
        return result

    def unknown(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keys of `cfg` (plain data) without a row, with their values other than null and `{}`."""
        pairs = dotted(cfg).items()
        return {
            key: value for key, value in pairs if value is not None and value != {} and self.find(key) is None
        }

    def nearest(self, key: str) -> str | None:
        """Return the most similar known key, first from the same section, then from all; None without any."""
        section = key.rpartition(".")[0]
        siblings = [name for name in self.names if name.rpartition(".")[0] == section]
        return nearest(key, siblings, cutoff=0.8) or nearest(key, self.names, cutoff=0.85)

    def without_effect(self, settings: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Yield a remark for each of `settings`, dotted keys with values, that has an effect in the
        framework's own run and none here.
        """
        for key, value in settings:
            row = self.find(key)
            if row is not None and row.fate == "without effect" and not row.allows(value):
                yield f"{key}={shortened(value)} has no effect here: {row.why}"

    def changes(self, cfg: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the settings of `cfg` (plain data) that the run switches off."""
        for row in self.rows:
            if row.fate == "changed" and lookup(cfg, row.name):
                yield Change(row.name, False, row.why)


def _sections(names: Iterable[str]) -> frozenset[str]:
    """Return every section that contains one of the dotted `names`."""
    parts = [name.split(".") for name in names]
    return frozenset(".".join(part[:depth]) for part in parts for depth in range(1, len(part)))


def _holds(cfg: Mapping[str, Any], key: str) -> bool:
    """Return True if `cfg` has a dotted key, with any value or null."""
    section, _, name = key.rpartition(".")
    around = lookup(cfg, section) if section else cfg
    return isinstance(around, Mapping) and name in around


def own_sections(cfg: Mapping[str, Any], known: Collection[str], *, framework: str) -> Iterator[str]:
    """Yield a note for each key at the top of `cfg` that is not `known`: it is the user's own.

    `known` are the sections of the framework and of this package.
    """
    brought = entry_points(group="rlinf_async.preparations").names
    for name in cfg:
        if name not in known and name not in brought:
            near = misspelt(name, known)
            hint = f"; did you mean {near}?" if near else ""
            own = f"{clipped(str(name))} is a block of this config's own"
            yield f"{own}, which {framework} does not read{hint}"


@cache
def _setting_keys() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (setting, dotted keys) for every setting of every host; a setting has an item per host."""
    return tuple(
        (setting, tuple(keys.split())) for host in every() for setting, keys in host.setting_keys.items()
    )


def counterparts(key: str) -> list[str]:
    """Return the other keys, of all hosts, for the same setting as the dotted `key`."""
    settings = {setting for setting, keys in _setting_keys() if key in keys}
    return [name for setting, keys in _setting_keys() for name in keys if setting in settings and name != key]
