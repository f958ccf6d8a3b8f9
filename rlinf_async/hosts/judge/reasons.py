"""The reasons why a config cannot run, reported all at once; settings that do not go together, or that a run
changes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import clipped, misspelt, shortened

UNSET_VALUES = (None, False, 0, "")
"""Values that switch nothing on; empty blocks and lists do not, either."""
SETTING_WORDS = re.compile(r"(~?)([\w.]+)(?:(!?=|[<>])(\S+))?")
"""A setting of a conflict: `~`, the key, a sign, and words."""
MAX_SHOWN_REASONS = 3
"""Reasons in one message at most, so that it has five lines: of many, first those that no override mends."""


@dataclass(frozen=True)
class Reason:
    """A reason why a config cannot run, or why a run does more work than it might, with its remedy."""

    text: str
    override: str = ""
    """The remedy as a Hydra override; empty if an override alone is no remedy."""


@dataclass(frozen=True)
class Change:
    """A setting of the framework that a run changes, so that its levels can work."""

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}={str(self.value).lower()}: {self.why}"


class RefusedError(ValueError):
    """The config cannot run; `reasons` has all reasons."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        # Several checks may find the same reason: its first occurrence is kept.
        whole = (replace(reason, text=readable(reason.text)) for reason in reasons)
        self.reasons = tuple(dict.fromkeys(whole))
        super().__init__(_message(self.reasons))


def refuse(reasons: Sequence[Reason]) -> None:
    """Raise a RefusedError with all `reasons`, if there are any."""
    if reasons:
        raise RefusedError(reasons)


def reasons_of(error: ValueError) -> tuple[Reason, ...]:
    """Return the reasons of a RefusedError; the message of another error as a single reason."""
    return error.reasons if isinstance(error, RefusedError) else (Reason(str(error)),)


def readable(text: str) -> str:
    """Return a sentence with its longest words, such as paths, clipped."""
    return re.sub(r"\S{256,}", lambda word: clipped(word[0]), text)


def _message(reasons: Sequence[Reason]) -> str:
    if len(reasons) == 1:
        return reasons[0].text
    first = "" if len(reasons) <= MAX_SHOWN_REASONS else f"; the first {MAX_SHOWN_REASONS}"
    shown = sorted(reasons, key=lambda reason: bool(first and reason.override))[:MAX_SHOWN_REASONS]
    heading = f"this config cannot run for {len(reasons)} reasons{first}:"
    lines = [heading, *(f"  - {reason.text}" for reason in shown)]
    overrides = dict.fromkeys(reason.override for reason in reasons if reason.override)
    return "\n".join([*lines, *([f"as overrides: {' '.join(overrides)}"] if overrides else [])])


def override_reason(text: str, override: str) -> Reason:
    """Return a reason with a remedy that its sentence names at its end."""
    return Reason(f"{text}; use {override}", override)


def unknown_reason(key: str, name: object, names: Sequence[str], description: str) -> Reason:
    """Return the reason that `name`, the value of `key`, is not among `names`: it is no `description`.

    The message suggests the nearest name, or lists all. A suggestion is not given as an override, as only the
    user knows whether it was meant.
    """
    near = misspelt(name, names)
    hint = f"; did you mean {near!r}?" if near else f"; there is {', '.join(names) or 'none'}"
    group, place = description.rpartition(" ")[2], str(name).replace(":", ".").split(".")
    if not near and group.startswith("rlinf_async.") and len(place) > 1 and all(map(str.isidentifier, place)):
        own, value = place[-1].lower(), f"{'.'.join(place[:-1])}:{place[-1]}"
        hint = (
            f'; add {own} = {value!r} to [project.entry-points."{group}"] in the pyproject.toml of its '
            f"package, install that, and set {key}={own}"
        )
    return Reason(f"{key}={shortened(name)} is not {description}{hint}")


def is_off(value: Any) -> bool:
    """Return True if a value switches nothing on."""
    # `in` compares by `==`: 0.0 and False equal 0, and True equals no unset value.
    return value in UNSET_VALUES if not isinstance(value, Mapping | list) else not value


def written(value: Any) -> str:
    """Return a value as an override writes it: `true`, `null`, `0.5`, `name`, `[one,two]`."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"  # a space would end the override
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


HOLDS: Mapping[str, Callable[[Any, Sequence[str]], bool]] = {
    "": lambda value, words: not is_off(value),
    "~": lambda value, words: is_off(value),
    "=": lambda value, words: written(value) in words,
    "!=": lambda value, words: written(value) not in words,
    "<": lambda value, words: (value or 0) < int(*words),
    ">": lambda value, words: (value or 0) > int(*words),
}
"""{sign of a setting in a conflict: returns True if the value of its key fits its words}."""
UNNAMED_SIGNS = ("~", "!=")
"""Signs of settings that a refusal does not name."""


@dataclass(frozen=True)
class Conflict:
    """Settings that do not go together, each with its key, its sign and its words."""

    settings: tuple[tuple[str, str, Sequence[str]], ...]
    why: str
    override: str

    @property
    def is_of_levels(self) -> bool:
        return any(key.partition(".")[0] == "async" for key, *_ in self.settings)

    def reason(self, held: Mapping[str, Any]) -> Reason | None:
        """Return the reason against `held`, the entries of a config; None if a setting is another."""
        if not all(HOLDS[sign](held.get(key), words) for key, sign, words in self.settings):
            return None
        named = [key for key, sign, _ in self.settings if sign not in UNNAMED_SIGNS and key != "async"]
        words = (f"no {key}" if held.get(key) is None else f"{key}={written(held[key])}" for key in named)
        return override_reason(f"{' with '.join(words)}: {self.why}", self.override)


def read_conflicts(file: Path, groups: Mapping[str, Iterable[str]]) -> Iterator[Conflict]:
    """Yield the conflicts of a file; `groups` has the words that the name of a group stands for."""
    for heading, text in tomllib.loads(file.read_text(encoding="utf-8"))["conflicts"].items():
        settings = tuple(
            (key, off or sign, sorted(groups.get(words, words.split("|"))))
            for off, key, sign, words in SETTING_WORDS.findall(heading)
        )
        yield Conflict(settings, *text.rsplit("; use ", 1))
