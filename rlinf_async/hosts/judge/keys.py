"""One table of keys per host: the values that each key may have, and the fate of the key.

From the rows follow the refusals of invalid values and of unknown keys, the remarks about keys without
effect, and the pages that list keys.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any

from rlinf_async.core.config_keys import clipped, dotted, lookup, misspelt, nearest, shortened
from rlinf_async.hosts.host import every
from rlinf_async.hosts.judge.kinds import ANYTHING, BLOCK, like
from rlinf_async.hosts.judge.reasons import Change, Reason
from rlinf_async.hosts.judge.rows import Key


def no_default(key: str) -> None:
    return None


class Table:
    """The keys of a host."""

    def __init__(
        self, rows: Sequence[Key], *, default_of: Callable[[str], Any] = no_default, is_whole: bool = False
    ) -> None:
        """The first row that matches a key is its row; rows without a pattern come before others.

        Args:
            default_of: returns the value that a dotted key has where nobody sets it; None if it has none. It
                tells the kind of a key that no row tells.
            is_whole: True if keys without a default may be null, as the framework lists all of its defaults.
        """
        self.rows = tuple(sorted(rows, key=lambda row: row.is_pattern))
        self._default_of, self._is_whole = default_of, is_whole
        self._row_of_key: dict[str, Key | None] = {}

    @cached_property
    def refused(self) -> list[Key]:
        """The rows of keys of which one setting alone is served."""
        return [row for row in self.rows if row.fate == "refused"]

    @cached_property
    def names(self) -> list[str]:
        """The keys that have a row of their own."""
        return [row.name for row in self.rows if not row.is_pattern]

    @cached_property
    def sections(self) -> frozenset[str]:
        """The names of the blocks that the keys of all rows stand in."""
        return frozenset(row.name.partition(".")[0].rstrip("*?") for row in self.rows)

    def find(self, key: str) -> Key | None:
        """Return the row of a dotted key; None if the table has none."""
        if key not in self._row_of_key:
            wide = (row for row in self._wide if row.matches(key))
            self._row_of_key[key] = self._exact.get(key) or next(wide, None)
        return self._row_of_key[key]

    @cached_property
    def _single(self) -> list[Key]:
        """The rows of one key each that say of which kind it is."""
        return [row for row in self.rows if row.kind is not ANYTHING and not row.is_pattern]

    @cached_property
    def _wide(self) -> list[Key]:
        """The rows of several keys; a refused row is also that of all keys inside of its block."""
        return [row for row in self.rows if row.fate == "refused" or row.is_pattern]

    @cached_property
    def _exact(self) -> dict[str, Key]:
        # Reversed, so that of several rows of one name the first stays.
        return {row.name: row for row in reversed(self.rows)}

    @cached_property
    def _blocks(self) -> list[Key]:
        """A row for every section that a key lies in, the outer ones first."""
        required = _sections(row.name for row in self.rows if row.required)
        return [
            self._exact.get(name) or Key(name=name, kind=BLOCK, required=name in required)
            for name in sorted(_sections(self.names), key=lambda name: (name.count("."), name))
        ]

    def reasons(
        self, cfg: Mapping[str, Any], *, complete: bool = True, usual: Mapping[str, Any] | None = None
    ) -> list[Reason]:
        """Return the reasons for values of `cfg` (plain data) that are not of their key's kind.

        Args:
            complete: True if the keys that a run needs must be there.
            usual: values by dotted keys that follow from others in `cfg`, and are judged there.
        """
        # One after the other: below a section that holds something else than keys no value can be looked up.
        if blocks := self.block_reasons(cfg):
            return blocks
        judged = (*self._single, *self._open_rows(cfg, usual or {}))
        return [reason for row in judged if (reason := self._reason(row, cfg, complete=complete))]

    def block_reasons(self, cfg: Mapping[str, Any]) -> list[Reason]:
        """Return the reasons for sections of `cfg` (plain data) that hold something else than keys."""
        held = (row for row in self._blocks if row.fate == "served" and _holds(cfg, row.name))
        return [reason for row in held if (reason := self._reason(row, cfg, complete=True))]

    def _open_rows(self, cfg: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[Key]:
        """A row for each key of `cfg` whose default alone tells of which kind it is."""
        for key, value in dotted(cfg).items():
            row, default = self.find(key), self._default_of(key)
            is_open = row is None or (row.kind is ANYTHING and row.fate == "served")
            if is_open and default is not None and (value is None or value != usual.get(key)):
                yield Key(name=key, kind=like(default))

    def _reason(self, row: Key, cfg: Mapping[str, Any], *, complete: bool) -> Reason | None:
        """Why the value of the key of a row cannot be; a run that is not `complete` gets the keys that it
        needs from others.
        """
        if (value := lookup(cfg, row.name)) is not None:
            return row.wrong(value)
        if not _holds(cfg, row.name):
            return row.missing() if row.required and complete else None
        default = self._default_of(row.name)
        is_unset = self._is_whole and default is None and not row.required
        if row.fate != "served" or row.nullable or is_unset or (row.required and not complete):
            return None
        return row.wrong_null(None if isinstance(default, Mapping) else default)

    def nulls(self, cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the keys of `cfg` (plain data) that are null, and the values that null stands for there."""
        for row in self.rows:
            if row.null is not None and lookup(cfg, row.name) is None and _holds(cfg, row.name):
                yield row.name, row.null

    def without_nulls(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """`cfg` (plain data) with the values that null stands for, of the keys where it stands for one."""
        result = copy.deepcopy(dict(cfg))
        for key, value in self.nulls(cfg):
            section, _, name = key.rpartition(".")
            lookup(result, section)[name] = value
        return result

    def unknown(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of `cfg` (plain data) that no row is about and that are not null, with their values."""
        pairs = dotted(cfg).items()
        return {
            key: value for key, value in pairs if value is not None and value != {} and self.find(key) is None
        }

    def nearest(self, key: str) -> str | None:
        """The key that may have been meant: in the same section, then anywhere."""
        section = key.rpartition(".")[0]
        siblings = [name for name in self.names if name.rpartition(".")[0] == section]
        return nearest(key, siblings, cutoff=0.8) or nearest(key, self.names, cutoff=0.85)

    def without_effect(self, settings: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """A remark for each of `settings`, dotted keys with values, that the framework would act on and that
        does nothing here.
        """
        for key, value in settings:
            row = self.find(key)
            if row is not None and row.fate == "without effect" and not row.allows(value):
                yield f"{key}={shortened(value)} has no effect here: {row.why}"

    def changes(self, cfg: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the settings of `cfg` (plain data) that give way to a run, which switches them off."""
        for row in self.rows:
            if row.fate == "changed" and lookup(cfg, row.name):
                yield Change(row.name, False, row.why)


def _sections(names: Iterable[str]) -> frozenset[str]:
    """Every section that one of the dotted `names` lies in."""
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
            yield f"{own}, in which {framework} reads nothing{hint}"


@cache
def _setting_keys() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The settings that hosts name, with the keys of one host each."""
    return tuple(
        (setting, tuple(keys.split())) for host in every() for setting, keys in host.setting_keys.items()
    )


def counterparts(key: str) -> list[str]:
    """The other keys, of all hosts, for the setting that a dotted key stands for."""
    settings = {setting for setting, keys in _setting_keys() if key in keys}
    return [name for setting, keys in _setting_keys() for name in keys if setting in settings and name != key]
