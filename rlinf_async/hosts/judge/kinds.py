"""Kinds of values, each built from its words in a refusal, such as `a number from 0 to 1`."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.config_keys import misspelt


@dataclass(frozen=True)
class Kind:
    """A kind of values. This base class accepts every value: other code judges it, or none does."""

    words: str
    """The words that follow `must be` in a refusal."""

    def accepts(self, value: Any) -> bool:
        """Return True if `value`, which is not None, is of this kind."""
        return True

    def near(self, value: Any) -> Any:
        """Return the value of this kind that the user may have meant by `value`; None if there is none."""
        return None


@dataclass(frozen=True)
class Number(Kind):
    """Finite numbers within limits. A bool is not a number, and 2.0 is not a whole number."""

    is_whole: bool = False
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    """An exclusive limit; `least` and `most` are inclusive."""

    def accepts(self, value: Any) -> bool:
        # Python's bool is an int.
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return self._fits(value) and self.least <= value <= self.most

    def near(self, value: Any) -> Any:
        number = _number(value)
        # There is no nearest number above an exclusive limit.
        if number is None or not self._fits(number):
            return None
        number = round(number) if self.is_whole else number
        return min(max(number, self.least), self.most)

    def _fits(self, value: float) -> bool:
        """Return True if a number is above the exclusive limit and, unless whole, fits into a float."""
        # The comparison is False for NaN, too.
        return (self.is_whole or abs(value) <= sys.float_info.max) and value > self.above


@dataclass(frozen=True)
class Typed(Kind):
    """Values of one Python type: bools, strings, or mappings."""

    type: type

    def accepts(self, value: Any) -> bool:
        return isinstance(value, self.type)

    def near(self, value: Any) -> Any:
        is_flag = self.type is bool and type(value) is int and value in (0, 1)
        return bool(value) if is_flag else None


@dataclass(frozen=True)
class Names(Kind):
    """One of several names."""

    names: Sequence[str]

    def accepts(self, value: Any) -> bool:
        return type(value) in (str, int) and str(value) in self.names  # YAML reads 16 as a number

    def near(self, value: Any) -> Any:
        return misspelt(value, self.names) if isinstance(value, str) else None


@dataclass(frozen=True)
class Listed(Kind):
    """One value of a kind, or a list of them."""

    kind: Kind

    def accepts(self, value: Any) -> bool:
        return all(map(self.kind.accepts, value if isinstance(value, list | tuple) else [value]))

    def near(self, value: Any) -> Any:
        return self.kind.near(value)


UNSTATED_KIND = Kind("anything")
"""The kind of a row that gives none: the key has the kind of its default, if it has one."""
UNCHECKED_KIND = Kind("anything at all")
"""The kind of keys that are never judged."""
FLAG_KIND, TEXT_KIND = Typed("true or false", bool), Typed("a text", str)
BLOCK_KIND = Typed("a block of keys", Mapping)
NUMBER_WORDS = re.compile(
    r"a (?P<whole>whole )?(finite )?number( (of at least|from) (?P<least>\S+))?( above (?P<above>\S+))?"
    r"( (of at most|and at most|to) (?P<most>\S+))?"
)
CHOICE_PREFIX, LIST_SUFFIX = "one of ", ", or a list of them"


def kind_of(words: str) -> Kind:
    """Return the kind that `words` describe; words of no kind in this module describe a text.

    Raises:
        ValueError: `words` mention a number, but do not match `NUMBER_WORDS`.
    """
    if number := NUMBER_WORDS.fullmatch(words):
        limits = {name: int(number[name]) for name in ("least", "most", "above") if number[name]}
        return Number(words, is_whole=bool(number["whole"]), **limits)
    if words.endswith(LIST_SUFFIX):
        return Listed(words, kind_of(words.removesuffix(LIST_SUFFIX)))
    if words.startswith(CHOICE_PREFIX):
        return Names(words, tuple(words.removeprefix(CHOICE_PREFIX).split(", ")))
    if " number" in words:
        raise ValueError(
            f"the words {words!r} must be the description of a number, as in {NUMBER_WORDS.pattern}"
        )
    kinds = (UNSTATED_KIND, UNCHECKED_KIND, FLAG_KIND, BLOCK_KIND)
    return next((kind for kind in kinds if kind.words == words), Typed(words, str))


NUMBER_KIND, WHOLE_KIND = kind_of("a finite number"), kind_of("a whole number")
COUNT_KIND = kind_of("a whole number of at least 1")


def kind_of_default(default: Any) -> Kind:
    """Return the kind of values that may replace a default."""
    # Flags before numbers: Python's bool is an int.
    of_type = {bool: FLAG_KIND, int | float: NUMBER_KIND, Mapping: BLOCK_KIND, str: TEXT_KIND}
    return next((kind for type_, kind in of_type.items() if isinstance(default, type_)), UNCHECKED_KIND)


def written(value: Any) -> str:
    """Return a value as an override writes it: `true`, `null`, `0.5`, `name`, `[one,two]`."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"  # a space would end the override
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any) -> float | int | None:
    """Return `value` as a finite number, if it is a number or the text of one; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = value if isinstance(value, int) else float(value)
    except ValueError:
        return None
    return number if isinstance(number, int) or math.isfinite(number) else None
