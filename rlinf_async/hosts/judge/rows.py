"""Reads rows of a table of keys from texts, in which a line or a heading says what keys have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.hosts.judge.keys import UNSET_VALUES, Fate, Key
from rlinf_async.hosts.judge.kinds import ANYTHING, FLAG, WHOLE_KIND, kind_of

NULL_IS = "null is "


def grouped(text: str) -> Iterator[tuple[str, str]]:
    """Yield the keys in a text, each with the heading that it stands under.

    Lines that are indented hold keys, or the names of keys in a section as `SECTION: NAME NAME`.
    """
    heading = ""
    for line in text.strip().splitlines():
        if not line.startswith(" "):
            heading = line
            continue
        section, _, names = line.strip().rpartition(": ")
        yield from ((heading, f"{section}.{name}".lstrip(".")) for name in names.split())


def rows(text: str, fate: Fate = "served") -> list[Key]:
    """The rows of a text as of `grouped`, with headings such as `true or false (or null)`: the words of a
    kind, and in brackets that a run needs the keys, that they may be null, or what null stands for.
    """
    found = []
    for heading, name in grouped(text):
        words, _, note = heading.rstrip(")").partition(" (")
        null = int(note.removeprefix(NULL_IS)) if note.startswith(NULL_IS) else None
        more: dict[str, Any] = {
            "required": note == "needed",
            "nullable": bool(note) and note != "needed",
            "null": null,
        }
        found.append(Key(name=name, kind=kind_of(words), fate=fate, **more))
    return found


def without_effect(text: str, **more: Any) -> list[Key]:
    """The rows of a text as of `grouped`, with the reasons as headings."""
    return [Key(name=name, fate="without effect", why=why, **more) for why, name in grouped(text)]


WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
"""Values as an override writes them; others are whole numbers or texts."""


def refused(lines: str, more: Mapping[str, Mapping[str, Any]]) -> list[Key]:
    """Keys of which one setting alone is served.

    Args:
        lines: one for each key, `SETTING: WHY`; the setting is a Hydra override, `KEY=VALUE` or `~KEY`.
        more: fields of rows, by the names of their keys.
    """
    found = []
    for line in lines.strip().splitlines():
        setting, _, why = line.partition(": ")
        name, _, word = setting.removeprefix("~").partition("=")
        is_number = word.lstrip("-").isdigit()
        value = int(word) if is_number else WORDS.get(word, word)
        kind = WHOLE_KIND if is_number else FLAG if isinstance(value, bool) else ANYTHING
        fields: dict[str, Any] = {
            "kind": kind,
            "remedy": f"set it to {word}: {why}" if word else f"remove it: {why}",
            "serves": (None, value).__contains__ if value not in UNSET_VALUES else None,
        }
        found.append(Key(name=name, fate="refused", override=setting, **{**fields, **more.get(name, {})}))
    return found
