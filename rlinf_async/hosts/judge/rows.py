"""The rows of a host's table of keys, read from the file `keys.toml` beside the host's modules.

The file has a table for each fate. Its entries name what several keys have in common, and then the keys:

    [served]
    "a whole number of at least -1 (null is -1)" = "runner.max_steps runner.save_interval"
    [refused]
    "rollout.collect_transitions=false" = "only on-policy losses are supported"
    ["without effect"]
    "DAgger alone reads it" = "algorithm.dagger* runner.expert_ckpt_path"

An entry begins with the words of a kind. `refused` has the override that is served instead, with the kind in
brackets where the value does not tell it, and keys without effect may be anything. In `changed` and
`translated` a reason follows the kind. A line `SECTION: NAME NAME` holds keys of one section. `open` has
served keys that other code judges, `defaults` the values of keys that a config lacks, and `settings` the keys
of settings that other hosts have as well.
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
from rlinf_async.hosts.judge.kinds import ANYTHING, FLAG, WHOLE_KIND, Kind, kind_of, written
from rlinf_async.hosts.judge.reasons import Reason

Fate = Literal["served", "changed", "translated", "refused", "without effect", "unread"]
UNSET_VALUES = (None, False, 0, "")
"""Values by which a key asks for nothing; so do empty blocks and lists."""
WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
"""Values as an override writes them; others are whole numbers or texts."""
NULL_IS, SETTINGS = "null is ", "settings"


def always(cfg: Mapping[str, Any], asynchrony: AsyncConfig) -> bool:
    return True


def asks_for_nothing(value: Any) -> bool:
    """Return True if a value switches nothing on."""
    # `in` compares by `==`: 0.0 and False are 0, and True is none of them.
    return value in UNSET_VALUES if not isinstance(value, Mapping | list) else not value


@dataclass(frozen=True, kw_only=True)
class Key:
    """A row: a key by its dotted name, or several by a pattern."""

    name: str
    kind: Kind = ANYTHING
    required: bool = False
    """True if a run needs a value."""
    nullable: bool = False
    """True if null may stand for no value."""
    null: Any = None
    """The value that null stands for and that is written in its place; None if nothing is."""
    fate: Fate = "served"
    why: str = ""
    """For a reader: why it has no effect, is changed, or is refused."""
    levels: tuple[str, ...] = LEVEL_NAMES
    """The levels that the key concerns."""
    serves: Callable[[Any], bool] = asks_for_nothing
    """Returns True for the values of a refused key that are served all the same, and for those of a key
    without effect that are not worth a remark."""
    override: str = ""
    """The setting of a refused key that is served, as a Hydra override."""
    where: Callable[[Mapping[str, Any], AsyncConfig], bool] = always
    """Returns True for the runs with one of `levels` on that a refused key concerns."""

    @property
    def is_pattern(self) -> bool:
        """True if the row is one of several keys."""
        return "*" in self.name or "?" in self.name

    @property
    def remedy(self) -> str:
        """The words on what to do instead of a refused key."""
        word = self.override.partition("=")[2]
        return f"set it to {word}: {self.why}" if word else f"remove it: {self.why}"

    def matches(self, key: str) -> bool:
        """Return True if this is the row of a dotted key; the row of a refused block is that of all keys
        inside.
        """
        return fnmatchcase(key, self.name) or (self.fate == "refused" and key.startswith(f"{self.name}."))

    def allows(self, value: Any) -> bool:
        """Return True if a value of a refused key is served; a value that is not of its kind gets another
        refusal.
        """
        return (value is not None and not self.kind.accepts(value)) or self.serves(value)

    def says(self, value: Any) -> str:
        """Return the second half of a refusal: what is not supported, and the remedy; the caller puts the
        subject before it.
        """
        return f"does not support {self.name}={shortened(value)}; {self.remedy}"

    def refusal(self, subject: str, value: Any) -> Reason:
        """Why `subject`, the levels of a run, cannot run with a value of this refused key."""
        return Reason(f"{subject} {self.says(value)}", self.override)

    def missing(self) -> Reason:
        """Why a config without a value of this key cannot run."""
        return Reason(f"{self.name} is missing; set it to {self.kind.words}")

    def wrong(self, value: Any) -> Reason | None:
        """Why `value`, which is not null, cannot be the value of this key."""
        if self.kind.accepts(value):
            return None
        near = self.kind.near(value)
        hint, override = "", ""
        if isinstance(near, str):  # a guess, which a reader has to decide on
            hint = f"; did you mean {near!r}?"
        elif near is not None:
            hint, override = f"; nearest: {written(near)}", f"{self.name}={written(near)}"
        return Reason(f"{self.name}={shortened(value)} must be {self.kind.words}{hint}", override)

    def wrong_null(self, default: Any) -> Reason:
        """Why this key cannot be null.

        Args:
            default: the value that the key has where nobody sets it; None if it has none.
        """
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
        more: fields that a text cannot hold, by the names of keys or of fates.

    Returns:
        The rows in the order of the file, and the defaults by dotted keys.
    """
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    tables.pop(SETTINGS, None)
    defaults = dotted(tables.pop("defaults", {}))
    found = (fields for fate, entries in tables.items() for fields in _rows(fate, entries))
    rows = [Key(**{**row, **more.get(row["fate"], {}), **more.get(row["name"], {})}) for row in found]
    return rows, defaults


def read_settings(file: Path) -> dict[str, str]:
    """Return the keys of each setting that other hosts have as well, from a host's file of rows."""
    settings: dict[str, str] = tomllib.loads(file.read_text(encoding="utf-8"))[SETTINGS]
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
    """The fields that `KIND (NOTE): WHY` tells; the note says that a run needs the keys, that they may be
    null, or what null stands for.
    """
    words, _, why = heading.partition(": ")
    words, _, note = words.removesuffix(")").partition(" (")
    null = int(note.removeprefix(NULL_IS)) if note.startswith(NULL_IS) else None
    nullable = bool(note) and note != "needed"
    return {
        "kind": kind_of(words),
        "required": note == "needed",
        "nullable": nullable,
        "null": null,
        "why": why,
    }


def _refused(setting: str, why: str) -> dict[str, Any]:
    """The fields of a key of which one setting alone is served: `KEY=VALUE (KIND)` or `~KEY (KIND)`."""
    override, _, words = setting.removesuffix(")").partition(" (")
    name, _, word = override.removeprefix("~").partition("=")
    is_number = word.lstrip("-").isdigit()
    value = int(word) if is_number else WORDS.get(word, word)
    kind = WHOLE_KIND if is_number else FLAG if isinstance(value, bool) else ANYTHING
    serves = asks_for_nothing if value in UNSET_VALUES else (None, value).__contains__
    return {
        "name": name,
        "kind": kind_of(words) if words else kind,
        "why": why,
        "override": override,
        "serves": serves,
    }
