"""The table of a host's config keys, read from the file `keys.toml` beside the host's modules.

It yields the refusals of wrong values, the remarks about keys without effect, and the pages that list keys.
The file has a TOML table for each fate of a key. An entry gives a property that several keys have in common,
then those keys:

    [served]
    "a whole number of at least -1 (null is -1)" = "runner.max_steps runner.save_interval"
    [refused]
    "rollout.collect_transitions=false" = "only on-policy losses are supported"
    ["without effect"]
    "DAgger alone reads it" = "algorithm.dagger* runner.expert_ckpt_path"

The property is a kind, in its words (`kind_of`), with a note in brackets; in `changed` and `translated`,
a reason follows it. In `without effect` the property is a reason, and the keys may have any value. `refused`
differs: an entry gives, as an override, the only value that is served, then the reason. The kind follows the
override in brackets if the value does not tell it. A line `SECTION: NAME NAME` lists keys of one section.
`open` has served keys that other code judges, `defaults` the values of keys that a config lacks,
`settings` the keys of each setting that other hosts have as well. `conflicts` has the settings that do not go
together, with the reason and the remedy:

    "algorithm.adv_type=GROUPED algorithm.group_size<2" = "members are compared; use algorithm.group_size=2"

A setting is `KEY` (it is on), `KEY=WORD|WORD`, `KEY<NUMBER` or `KEY>NUMBER`. `KEY!=WORD|WORD` and `~KEY` (it
is off or absent) limit the others, and a refusal does not name them. A group of words may have a name.
`async` is on if a level is.
"""

from __future__ import annotations

import copy
import math
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import yaml

from rlinf_async.config import LEVEL_NAMES, AsyncConfig
from rlinf_async.core.config_keys import dotted, dotted_names, entries, lookup, misspelt, shortened
from rlinf_async.hosts.judge.reasons import UNSET_VALUES, Change, Conflict, Reason, is_off, written

Fate = Literal["served", "changed", "translated", "refused", "without effect", "unread"]
NULL_NOTE = "null is "


@dataclass(frozen=True)
class Kind:
    """A kind of values, built from its words in a refusal; without a type, it accepts every value."""

    words: str
    """The words that follow `must be`."""
    type: Any = object
    """The Python type; numbers are finite, a bool is not one, and 2.0 is not a whole one."""
    names: tuple[str, ...] = ()
    """The values, unless empty."""
    lengths: range = range(0)
    """The lengths that a list of such values may have; none if lists are not accepted."""
    single: bool = True
    """True if a value that is no list is accepted."""
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    """Exclusive limits; `least` and `most` are inclusive."""

    def accepts(self, value: Any) -> bool:
        """Return True if `value`, which is not None, is of this kind."""
        if self.lengths and isinstance(value, list | tuple):
            each = replace(self, lengths=range(0), single=True)
            return len(value) in self.lengths and all(map(each.accepts, value))
        if not self.single:
            return False
        if self.names:
            return type(value) in (str, int) and str(value) in self.names  # YAML reads 16 as a number
        if self.type not in NUMBER_TYPES:
            return isinstance(value, self.type)
        # Python's bool is an int.
        is_number = isinstance(value, self.type) and not isinstance(value, bool)
        return is_number and self._fits(value) and self.least <= value <= self.most

    def near(self, value: Any) -> Any:
        """Return the value of this kind that the user may have meant by `value`; None if there is none."""
        if self.names:
            each = value if isinstance(value, list | tuple) else [value]
            wrong = next((name for name in each if isinstance(name, str) and name not in self.names), None)
            return misspelt(wrong, self.names) if wrong else None
        if self.type is bool:
            return bool(value) if type(value) is int and value in (0, 1) else None
        number = _number(value) if self.type in NUMBER_TYPES and self.single else None
        if number is not None and self.type is int:
            number = round(number)
        # There is no nearest number within an exclusive limit.
        near = None if number is None or not self._fits(number) else min(max(number, self.least), self.most)
        # As a whole number, a float such as 1e200 would fill lines.
        return None if near is not None and abs(near) > LARGEST_NUMBER and type(value) is not int else near

    def _fits(self, value: float) -> bool:
        """Return True if a number is within the exclusive limits and, unless whole, fits into a float."""
        # The comparison is False for NaN, too.
        return (self.type is int or abs(value) <= LARGEST_NUMBER) and self.above < value < self.below


NUMBER_TYPES = (int, int | float)
LARGEST_NUMBER = 1e37  # Adam divides rates by numbers down to 0.1, in float32
UNSTATED_KIND = Kind("anything")
"""The kind of a row that gives none: the key has the kind of its default, if it has one."""
UNCHECKED_KIND = Kind("anything at all")
"""The kind of keys that are never judged."""
FLAG_KIND, TEXT_KIND = Kind("true or false", bool), Kind("a text", str)
BLOCK_KIND = Kind("a block of keys", Mapping)
NUMBER_WORDS = re.compile(
    r"a (?P<whole>whole )?(finite )?number( (of at least|from) (?P<least>\S+))?( above (?P<above>\S+))?"
    r"( (of at most|and at most|to) (?P<most>\S+))?( and below (?P<below>\S+))?"
)
CHOICE_PREFIX, PAIR_PREFIX = "one of ", "a list of two, each "
LIST_SUFFIXES = {
    ", or a list of them": range(sys.maxsize),
    ", or a list of one or more": range(1, sys.maxsize),
}
LIMITS = ("least", "most", "above", "below")


def kind_of(words: str) -> Kind:
    """Return the kind that `words` describe; words of no kind in this module describe a text.

    Raises:
        ValueError: `words` mention a number, but do not match `NUMBER_WORDS`.
    """
    if number := NUMBER_WORDS.fullmatch(words):
        limits: Any = {name: int(number[name]) for name in LIMITS if number[name]}
        return Kind(words, int if number["whole"] else int | float, **limits)
    if words.startswith(PAIR_PREFIX):
        each = kind_of(words.removeprefix(PAIR_PREFIX))
        return replace(each, words=words, lengths=range(2, 3), single=False)
    for suffix, lengths in LIST_SUFFIXES.items():
        if words.endswith(suffix):
            return replace(kind_of(words.removesuffix(suffix)), words=words, lengths=lengths)
    if words.startswith(CHOICE_PREFIX):
        return Kind(words, names=tuple(words.removeprefix(CHOICE_PREFIX).split(", ")))
    if " number" in words:
        raise ValueError(
            f"the words {words!r} must be the description of a number, as in {NUMBER_WORDS.pattern}"
        )
    kinds = (UNSTATED_KIND, UNCHECKED_KIND, FLAG_KIND, BLOCK_KIND, Kind("a list", list))
    return next((kind for kind in kinds if kind.words == words), Kind(words, str))


NUMBER_KIND, WHOLE_KIND = kind_of("a finite number"), kind_of("a whole number")
COUNT_KIND = kind_of("a whole number of at least 1")


def kind_of_default(default: Any) -> Kind:
    """Return the kind of values that may replace a default."""
    # Flags before numbers: Python's bool is an int.
    of_type = {bool: FLAG_KIND, int | float: NUMBER_KIND, Mapping: BLOCK_KIND, str: TEXT_KIND}
    return next((kind for type_, kind in of_type.items() if isinstance(default, type_)), UNCHECKED_KIND)


def _number(value: Any) -> float | int | None:
    """Return `value` as a finite number, if it is a number or the text of one; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = value if isinstance(value, int) else float(value)
    except ValueError:
        return None
    return number if isinstance(number, int) or math.isfinite(number) else None


@dataclass(frozen=True, kw_only=True)
class Key:
    """A row: one key by its dotted name, or several keys by a pattern with `*` and `?`."""

    name: str
    kind: Kind = UNSTATED_KIND
    required: bool = False
    """True if a run needs a value."""
    nullable: bool = False
    """True if null is accepted."""
    null: Any = None
    """The value that null stands for, if any."""
    fate: Fate = "served"
    why: str = ""
    """The reason, for users, why the key has no effect, is changed, or is refused."""
    levels: tuple[str, ...] = LEVEL_NAMES
    """The levels that the key concerns."""
    serves: Callable[[Any], bool] = is_off
    """True for values of a refused key that are served, or of one without effect that need no remark."""
    override: str = ""
    """The only value of a refused key that is served, as a Hydra override."""
    where: Callable[[Any, AsyncConfig], bool] = lambda view, asynchrony: True
    """Returns True if a run refuses the key, by the host's view of its config; one of `levels` is on."""

    @property
    def is_pattern(self) -> bool:
        return "*" in self.name or "?" in self.name

    @property
    def remedy(self) -> str:
        word = self.override.partition("=")[2]
        return f"set it to {word}: {self.why}" if word else f"remove it: {self.why}"

    def matches(self, key: str) -> bool:
        """Return True if this row is about the dotted `key`; a refused block is about all keys inside."""
        return fnmatchcase(key, self.name) or (self.fate == "refused" and key.startswith(f"{self.name}."))

    def allows(self, value: Any) -> bool:
        """Return True if this refused key does not refuse `value`: it is served, or of a wrong kind."""
        return (value is not None and not self.kind.accepts(value)) or self.serves(value)

    def refused_words(self, value: Any) -> str:
        """Return a refusal without its subject, such as `does not support KEY=VALUE; remove it: WHY`."""
        return f"does not support {self.name}={shortened(value)}; {self.remedy}"

    def refused_reason(self, subject: str, value: Any) -> Reason:
        """Return the reason why `subject`, the levels of a run, refuses this key's `value`."""
        return Reason(f"{subject} {self.refused_words(value)}", self.override)

    def reason(self, value: Any, default: Any = None) -> Reason | None:
        """Return the reason why this key, with its `default` if any, cannot have `value`; None if it can."""
        near, words = self.kind.near(value), "nearest: "
        if value is None and self.required:
            return Reason(f"{self.name} is missing; set it to {self.kind.words}")
        if value is None:
            near, words = default, "the default is "
        elif self.kind.accepts(value):
            return None
        hint, override = "; it is too large" if (_number(value) or 0) > LARGEST_NUMBER else "", ""
        if isinstance(near, str) and value is not None:  # a guess: only the user knows whether it was meant
            hint = f"; did you mean {near!r}?"
        elif near is not None:
            hint, override = f"; {words}{written(near)}", f"{self.name}={written(near)}"
        shown = "null" if value is None else shortened(value)
        return Reason(f"{self.name}={shown} must be {self.kind.words}{hint}", override)


def read_rows(
    file: Path, more: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> tuple[list[Key], dict[str, Any]]:
    """Return the rows of a file, in its order, and the defaults by dotted keys.

    `more` are further fields of `Key`, such as functions, for the rows of a dotted key or of a fate.
    """
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    for name in ("settings", "conflicts"):
        tables.pop(name, None)
    defaults = dotted(tables.pop("defaults", {}))
    found = (fields for fate, entries in tables.items() for fields in _rows(fate, entries))
    rows = [Key(**{**row, **more.get(row["fate"], {}), **more.get(row["name"], {})}) for row in found]
    return rows, defaults


def _rows(fate: str, entries: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the fields of the rows in one table of a file."""
    for heading, text in entries.items():
        if fate == "refused":
            yield {"fate": fate, "why": text, **_refused_fields(heading)}
            continue
        common = {"why": heading} if fate == "without effect" else _kind_fields(heading)
        common["fate"] = "served" if fate == "open" else fate
        for line in text.strip().splitlines():
            section, _, names = line.strip().rpartition(": ")
            yield from ({**common, "name": f"{section}.{name}".lstrip(".")} for name in names.split())


def _kind_fields(heading: str) -> dict[str, Any]:
    """Return the fields of `Key` from `KIND (NOTE): WHY`; NOTE is `needed`, `or null` or `null is NUMBER`."""
    words, _, why = heading.partition(": ")
    words, _, note = words.removesuffix(")").partition(" (")
    null = int(note.removeprefix(NULL_NOTE)) if note.startswith(NULL_NOTE) else None
    required = note == "needed"
    nullable = bool(note) and not required
    return {"kind": kind_of(words), "required": required, "nullable": nullable, "null": null, "why": why}


def _refused_fields(setting: str) -> dict[str, Any]:
    """Return the fields of a refused key from `KEY=VALUE (KIND)` or `~KEY (KIND)`."""
    override, _, words = setting.removesuffix(")").partition(" (")
    name, _, word = override.removeprefix("~").partition("=")
    value = yaml.safe_load(word)
    kind = kind_of(words) if words else {bool: FLAG_KIND, int: WHOLE_KIND}.get(type(value), UNSTATED_KIND)
    serves = is_off if value in UNSET_VALUES else (None, value).__contains__
    return {"name": name, "kind": kind, "override": override, "serves": serves}


class Table:
    """The keys of a host."""

    def __init__(
        self,
        rows: Sequence[Key],
        *,
        conflicts: Iterable[Conflict] = (),
        default_of: Callable[[str], Any] = lambda key: None,
        knows_all_defaults: bool = False,
    ) -> None:
        """The first row that matches a key is its row; rows without a pattern come before others. A key
        without a kind in its row has the kind of its `default_of`, which is None without a default. If that
        `knows_all_defaults`, a key without one may be null.
        """
        self.rows = tuple(sorted(rows, key=lambda row: row.is_pattern))
        self.conflicts = tuple(conflicts)
        self._default_of, self._knows_all_defaults = default_of, knows_all_defaults
        self._row_of_key: dict[str, Key | None] = {}
        self.refused = [row for row in self.rows if row.fate == "refused"]
        self.names = [row.name for row in self.rows if not row.is_pattern]
        self.sections = frozenset(row.name.partition(".")[0].rstrip("*?") for row in self.rows)
        # Reversed, so that the first of several rows with the same name is kept.
        self._exact = {row.name: row for row in reversed(self.rows)}
        # Patterns, and refused blocks, which match all keys inside.
        self._wide = [row for row in self.rows if row.is_pattern or row.fate == "refused"]

    def find(self, key: str) -> Key | None:
        """Return the row of a dotted key; None if the table has none."""
        if key not in self._row_of_key:
            wide = (row for row in self._wide if row.matches(key))
            self._row_of_key[key] = self._exact.get(key) or next(wide, None)
        return self._row_of_key[key]

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
        """Return a reason for each value of `cfg` (plain data) that is not of its key's kind, and for each
        missing key that is required, if `cfg` is to be `complete`. `usual` has values by dotted key that the
        framework computes from other keys; they are not judged a second time.
        """
        # Sections first: no key can be looked up below a section that is not a mapping.
        if blocks := self.block_reasons(cfg):
            return blocks
        single = (row for row in self.rows if row.kind is not UNSTATED_KIND and not row.is_pattern)
        held, judged = entries(cfg), (*single, *self._open_rows(cfg, usual or {}))
        return [reason for row in judged if (reason := self._reason(row, held, complete=complete))]

    def block_reasons(self, cfg: Mapping[str, Any]) -> list[Reason]:
        """Return a reason for each section of `cfg` (plain data) that is no block, or holds a dotted key."""
        if wrong := list(dotted_names(cfg, {*self.sections, *(row.name for row in self._blocks)})):
            return list(map(Reason, wrong))
        held = entries(cfg)
        rows = (row for row in self._blocks if row.fate == "served" and row.name in held)
        return [reason for row in rows if (reason := self._reason(row, held, complete=True))]

    def unset_reasons(self, keys: Collection[str]) -> Iterator[Reason]:
        """Yield a reason for each of the dotted `keys`, which have the value `???`, that must have a value: a
        default in its place would not be what the config asks for.
        """
        for row in self.rows:
            stated = row.kind is not UNSTATED_KIND and not (row.required or row.nullable)
            if row.name in keys and row.fate == "served" and stated:
                yield Reason(f"{row.name}=??? has no value; set it to {row.kind.words}")

    def refused_reasons(
        self, cfg: Mapping[str, Any], subject: str, *, usual: Mapping[str, Any] = MappingProxyType({})
    ) -> Iterator[Reason]:
        """Yield a reason for each value of `cfg` (plain data) that `subject` refuses, but `usual` ones."""
        for row in self.refused:
            value = lookup(cfg, row.name)
            is_usual = row.name in usual and usual[row.name] == value
            if not (row.allows(value) or is_usual):
                yield row.refused_reason(subject, value)

    def conflict_reasons(
        self, cfg: Mapping[str, Any], asynchrony: AsyncConfig | None = None
    ) -> Iterator[Reason]:
        """Yield a reason for each conflict in `cfg` (plain data), or for those with levels that are on."""
        held = entries({**cfg, "async": asynchrony and asdict(asynchrony)})
        for conflict in self.conflicts:
            if conflict.is_of_levels is bool(asynchrony) and (reason := conflict.reason(held)):
                yield reason

    def _open_rows(self, cfg: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[Key]:
        """Yield a row for each key of `cfg` that has only its default to tell its kind."""
        for key, value in dotted(cfg).items():
            row, default = self.find(key), self._default_of(key)
            is_open = row is None or (row.kind is UNSTATED_KIND and row.fate == "served")
            if is_open and default is not None and (value is None or value != usual.get(key)):
                yield Key(name=key, kind=kind_of_default(default))

    def _reason(self, row: Key, held: Mapping[str, Any], *, complete: bool) -> Reason | None:
        """Return the reason why a key cannot have its value in `held`, the entries of a config, if any."""
        value, default = held.get(row.name), self._default_of(row.name)
        may_be_null = row.fate != "served" or row.nullable or (self._knows_all_defaults and default is None)
        if value is None and (not complete if row.required else may_be_null or row.name not in held):
            return None
        return row.reason(value, None if isinstance(default, Mapping) else default)

    def nulls(self, cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield each key of `cfg` (plain data) that is null, with the value that null stands for."""
        held = entries(cfg)
        for row in self.rows:
            if row.null is not None and row.name in held and held[row.name] is None:
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
        return {key: value for key, value in pairs if value not in (None, {}) and self.find(key) is None}

    def keys_of(self, words: str) -> list[str]:
        """Return the keys of the kind that `words` describe."""
        return [row.name for row in self.rows if row.kind.words == words]

    def counterpart(self, key: str) -> str | None:
        """Return the key here for the setting that the dotted `key` has in another host; None without one."""
        from rlinf_async.hosts.host import counterparts  # it loads the hosts, for keys that are refused

        return next((one for one in counterparts(key) if self.find(one)), None)

    def without_effect(self, settings: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """Yield a remark for each of `settings`, dotted keys with values, that only the framework heeds."""
        for key, value in settings:
            row = self.find(key)
            if row is not None and row.fate == "without effect" and not row.allows(value):
                yield f"{key}={shortened(value)} has no effect here: {row.why}"

    def changes(self, cfg: Mapping[str, Any]) -> Iterator[Change]:
        """Yield the settings of `cfg` (plain data) that the run switches off."""
        held = entries(cfg)
        for row in self.rows:
            if row.fate == "changed" and held.get(row.name):
                yield Change(row.name, False, row.why)


def _sections(names: Iterable[str]) -> frozenset[str]:
    """Return every section that contains one of the dotted `names`."""
    parts = [name.split(".") for name in names]
    return frozenset(".".join(part[:depth]) for part in parts for depth in range(1, len(part)))
