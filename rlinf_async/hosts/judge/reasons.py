"""Why a config cannot run, everything that stands in the way at once; and which of its settings give way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlinf_async.core.config_keys import clipped, misspelt, shortened

MOST_AT_ONCE = 3
"""Reasons that are told, so that an answer has five lines; the overrides are those of all."""

LONG_WORD = re.compile(r"\S{256,}")
"""A path or another value that no sentence has room for."""


def clip_word(word: re.Match[str]) -> str:
    """Return a `LONG_WORD` as a sentence has room for it."""
    return clipped(word[0])


@dataclass(frozen=True)
class Reason:
    """One thing that stands in the way, and what to do about it."""

    text: str
    override: str = ""
    """The remedy as a Hydra override, where it is one."""


@dataclass(frozen=True)
class Change:
    """A setting of the framework's that a run changes, so that its levels can work."""

    key: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}={str(self.value).lower()}: {self.why}"


class RefusedError(ValueError):
    """A config that cannot run, with all reasons."""

    def __init__(self, reasons: Sequence[Reason]) -> None:
        # Several checks may find the same; it is told once, where it came first.
        whole = (replace(reason, text=LONG_WORD.sub(clip_word, reason.text)) for reason in reasons)
        self.reasons = tuple(dict.fromkeys(whole))
        super().__init__(_together(self.reasons))


def refuse(reasons: Sequence[Reason]) -> None:
    """Raise if there is any reason to.

    Raises:
        RefusedError: names all of them.
    """
    if reasons:
        raise RefusedError(reasons)


def reasons_of(error: ValueError) -> tuple[Reason, ...]:
    """Return the reasons that `error` holds, or its message as one."""
    return error.reasons if isinstance(error, RefusedError) else (Reason(str(error)),)


def _together(reasons: Sequence[Reason]) -> str:
    if len(reasons) == 1:
        return reasons[0].text
    first = "" if len(reasons) <= MOST_AT_ONCE else f", the first {MOST_AT_ONCE} of them"
    lines = [f"{len(reasons)} things stand in the way{first}:"]
    lines += [f"  - {reason.text}" for reason in reasons[:MOST_AT_ONCE]]
    overrides = [reason.override for reason in reasons if reason.override]
    return "\n".join([*lines, *([f"as overrides: {' '.join(overrides)}"] if overrides else [])])


def unknown(key: str, name: object, names: Sequence[str], what: str) -> Reason:
    """Return the reason that `key` names none of `names`, which are each `what`; with that of which it is a
    misspelling, or all.

    What is near is no override: a reader has to tell whether it was meant.
    """
    near = misspelt(name, names)
    hint = f"; did you mean {near!r}?" if near else f"; there is {', '.join(names)}"
    return Reason(f"{key}={shortened(name)} is not {what}{hint}")
