"""The rows of a host's table of keys, read from the file `keys.toml` beside the host's modules.

The file has a TOML table for each fate of a key. An entry gives a property that several keys have in common,
then those keys:

    [served]
    "a whole number of at least -1 (null is -1)" = "runner.max_steps runner.save_interval"
    [refused]
    "rollout.collect_transitions=false" = "only on-policy losses are supported"
    ["without effect"]
    "DAgger alone reads it" = "algorithm.dagger* runner.expert_ckpt_path"

The property is a kind, in the words of `judge.kinds`, with a note in brackets; in `changed` and `translated`,
a reason follows it. In `without effect` the property is a reason, and the keys may have any value. `refused`
differs: an entry gives, as an override, the only value that is served, then the reason. The kind follows the
override in brackets if the value does not tell it.

A line `SECTION: NAME NAME` lists keys of one section. `open` has served keys that other code judges,
`defaults` the values of keys that a config lacks, and `settings` the keys of each setting that other hosts
have as well.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from rlinf_async.config import LEVEL_NAMES, AsyncConfig
from rlinf_async.core.config_keys import dotted, shortened
from rlinf_async.hosts.judge.kinds import FLAG_KIND, UNSTATED_KIND, WHOLE_KIND, Kind, kind_of, written
from rlinf_async.hosts.judge.reasons import Reason

Fate = Literal["served", "changed", "translated", "refused", "without effect", "unread"]
UNSET_VALUES = (None, False, 0, "")
"""Values that switch nothing on; empty blocks and lists do not, either."""
OVERRIDE_LITERALS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
"""Values as an override writes them; all others are whole numbers or texts."""
NULL_NOTE, SETTINGS_TABLE = "null is ", "settings"


def always(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return True


def is_off(value: Any) -> bool:
    """Return True if a value switches nothing on."""
    # `in` compares by `==`: 0.0 and False equal 0, and True equals no unset value.
    return value in UNSET_VALUES if not isinstance(value, Mapping | list) else not value


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
    """The value that null stands for, and that replaces null; None if null stands for no value."""
    fate: Fate = "served"
    why: str = ""
    """The reason, for users, why the key has no effect, is changed, or is refused."""
    levels: tuple[str, ...] = LEVEL_NAMES
    """The levels that the key concerns."""
    serves: Callable[[Any], bool] = is_off
    """Returns True for the values of a refused key that are served, and for the values of a key without
    effect that need no remark."""
    override: str = ""
    """The only value of a refused key that is served, as a Hydra override."""
    where: Callable[[Mapping[str, Any], AsyncConfig], bool] = always
    """Returns True if a run with one of `levels` on refuses the key."""

    @property
    def is_pattern(self) -> bool:
        """True if the row may match several keys."""
        return "*" in self.name or "?" in self.name

    @property
    def remedy(self) -> str:
        """The remedy for a refused key, in words."""
        word = self.override.partition("=")[2]
        return f"set it to {word}: {self.why}" if word else f"remove it: {self.why}"

    def matches(self, key: str) -> bool:
        """Return True if this row is about the dotted `key`; a refused block is about all keys inside."""
        return fnmatchcase(key, self.name) or (self.fate == "refused" and key.startswith(f"{self.name}."))

    def allows(self, value: Any) -> bool:
        """Return True if this refused key does not refuse `value`: it is served, or `wrong` refuses it."""
        return (value is not None and not self.kind.accepts(value)) or self.serves(value)

    def refusal_words(self, value: Any) -> str:
        """Return a refusal without its subject, such as `does not support KEY=VALUE; remove it: WHY`."""
        return f"does not support {self.name}={shortened(value)}; {self.remedy}"

    def refusal(self, subject: str, value: Any) -> Reason:
        """Return the reason why `subject`, the levels of a run, refuses this key's `value`."""
        return Reason(f"{subject} {self.refusal_words(value)}", self.override)

    def missing(self) -> Reason:
        """Return the reason why a config without this key cannot run."""
        return Reason(f"{self.name} is missing; set it to {self.kind.words}")

    def wrong(self, value: Any) -> Reason | None:
        """Return the reason why this key cannot have `value`, which is not None; None if it can."""
        if self.kind.accepts(value):
            return None
        near = self.kind.near(value)
        hint, override = "", ""
        if isinstance(near, str):  # a guess at a name: only the user knows whether it was meant
            hint = f"; did you mean {near!r}?"
        elif near is not None:
            hint, override = f"; nearest: {written(near)}", f"{self.name}={written(near)}"
        return Reason(f"{self.name}={shortened(value)} must be {self.kind.words}{hint}", override)

    def wrong_null(self, default: Any) -> Reason:
        """Return the reason why this key cannot be null; `default` is its default, None without one."""
        if self.required:
            return self.missing()
        hint = "" if default is None else f"; the default is {written(default)}"
        override = "" if default is None else f"{self.name}={written(default)}"
        return Reason(f"{self.name}=null must be {self.kind.words}{hint}", override)


def read_rows(
    file: Path, more: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> tuple[list[Key], dict[str, Any]]:
    """Read a file of rows.

    Args:
        more: further fields of `Key`, such as functions, for the rows of a dotted key or of a fate.

    Returns:
        The rows in the order of the file, and the defaults by dotted keys.
    """
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    tables.pop(SETTINGS_TABLE, None)
    defaults = dotted(tables.pop("defaults", {}))
    found = (fields for fate, entries in tables.items() for fields in _rows(fate, entries))
    rows = [Key(**{**row, **more.get(row["fate"], {}), **more.get(row["name"], {})}) for row in found]
    return rows, defaults


def read_settings(file: Path) -> dict[str, str]:
    """Return the table `settings` of a host's file of rows: the host's keys by the name of the setting."""
    settings: dict[str, str] = tomllib.loads(file.read_text(encoding="utf-8"))[SETTINGS_TABLE]
    return settings


def _rows(fate: str, entries: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the fields of the rows in one table of a file."""
    if fate == "refused":
        yield from ({"fate": fate, **_refused(*entry)} for entry in entries.items())
        return
    for heading, text in entries.items():
        common = {"why": heading} if fate == "without effect" else _kind_fields(heading)
        fate = "served" if fate == "open" else fate
        for line in text.strip().splitlines():
            section, _, names = line.strip().rpartition(": ")
            yield from (
                {"fate": fate, **common, "name": f"{section}.{name}".lstrip(".")} for name in names.split()
            )


def _kind_fields(heading: str) -> dict[str, Any]:
    """Return the fields of `Key` from `KIND (NOTE): WHY`; NOTE is `needed`, `or null` or `null is NUMBER`."""
    words, _, why = heading.partition(": ")
    words, _, note = words.removesuffix(")").partition(" (")
    null = int(note.removeprefix(NULL_NOTE)) if note.startswith(NULL_NOTE) else None
    nullable = bool(note) and note != "needed"
    return {
        "kind": kind_of(words),
        "required": note == "needed",
        "nullable": nullable,
        "null": null,
        "why": why,
    }


def _refused(setting: str, why: str) -> dict[str, Any]:
    """Return the fields of a refused key from `KEY=VALUE (KIND)` or `~KEY (KIND)`."""
    override, _, words = setting.removesuffix(")").partition(" (")
    name, _, word = override.removeprefix("~").partition("=")
    is_number = word.lstrip("-").isdigit()
    value = int(word) if is_number else OVERRIDE_LITERALS.get(word, word)
    kind = WHOLE_KIND if is_number else FLAG_KIND if isinstance(value, bool) else UNSTATED_KIND
    serves = is_off if value in UNSET_VALUES else (None, value).__contains__
    return {
        "name": name,
        "kind": kind_of(words) if words else kind,
        "why": why,
        "override": override,
        "serves": serves,
    }
