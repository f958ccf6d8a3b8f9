"""The reasons why a config cannot run, reported all at once, and the settings that a run changes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlinf_async.core.config_keys import clipped, misspelt, shortened

MAX_SHOWN_REASONS = 3
"""Reasons in one message at most, so that it has five lines; the line of overrides covers all reasons."""


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
    lines = [f"this config cannot run for {len(reasons)} reasons{first}:"]
    lines += [f"  - {reason.text}" for reason in reasons[:MAX_SHOWN_REASONS]]
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
    return Reason(f"{key}={shortened(name)} is not {description}{hint}")
