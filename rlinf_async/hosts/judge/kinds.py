"""The kinds of values of a key, made of the words that a refusal says of them: `a number from 0 to 1`."""

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
    """Values of one kind; of this one they are judged elsewhere, or not at all."""

    words: str
    """The words for values of this kind, after `must be`."""

    def accepts(self, value: Any) -> bool:
        """Return True if `value`, which is not None, is of this kind."""
        return True

    def near(self, value: Any) -> Any:
        """Return a value of this kind that the user may have meant by `value`; None where none is near."""
        return None


@dataclass(frozen=True)
class Number(Kind):
    """Finite numbers, all or whole ones within limits. A bool is none, and 2.0 is no whole number."""

    is_whole: bool = False
    least: float | None = None
    most: float | None = None
    above: float | None = None

    def accepts(self, value: Any) -> bool:
        # Python's bool is an int.
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return self._fits(value) and bool(self._clip(value) == value)

    def near(self, value: Any) -> Any:
        number = _number(value)
        if number is None or not self._fits(number):
            return None
        return self._clip(round(number) if self.is_whole else number)

    def _fits(self, value: float) -> bool:
        """Return True if a number is above the bound, and one that a float can hold, if it is to become one.

        No number is the nearest above a bound.
        """
        can_hold = self.is_whole or abs(value) <= sys.float_info.max  # false of nan, too
        return can_hold and (self.above is None or value > self.above)

    def _clip(self, value: Any) -> Any:
        value = value if self.least is None else max(value, self.least)
        return value if self.most is None else min(value, self.most)


@dataclass(frozen=True)
class Typed(Kind):
    """Values of one Python type: flags, texts, and blocks of keys."""

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


ANYTHING = Kind("anything")
"""Of keys whose default, where they have one, tells of which kind they are."""
FREE = Kind("anything at all")
"""Of keys that are not judged at all."""
FLAG, TEXT, BLOCK = Typed("true or false", bool), Typed("a text", str), Typed("a block of keys", Mapping)
NUMBER = re.compile(
    r"a (?P<whole>whole )?(finite )?number( (of at least|from) (?P<least>\S+))?( above (?P<above>\S+))?"
    r"( (of at most|and at most|to) (?P<most>\S+))?"
)
ONE_OF, OR_A_LIST = "one of ", ", or a list of them"


def kind_of(words: str) -> Kind:
    """Return the kind that `words` are said of; other words than those of the kinds here are of a text.

    Raises:
        ValueError: they speak of a number, and are not those of one.
    """
    if number := NUMBER.fullmatch(words):
        limits = {name: int(number[name]) for name in ("least", "most", "above") if number[name]}
        return Number(words, is_whole=bool(number["whole"]), **limits)
    if words.endswith(OR_A_LIST):
        return Listed(words, kind_of(words.removesuffix(OR_A_LIST)))
    if words.startswith(ONE_OF):
        return Names(words, tuple(words.removeprefix(ONE_OF).split(", ")))
    if " number" in words:
        raise ValueError(f"the words {words!r} must be those of a number, as in {NUMBER.pattern}")
    kinds = (ANYTHING, FREE, FLAG, BLOCK)
    return next((kind for kind in kinds if kind.words == words), Typed(words, str))


NUMBER_KIND, WHOLE_KIND = kind_of("a finite number"), kind_of("a whole number")
COUNT_KIND = kind_of("a whole number of at least 1")


def like(default: Any) -> Kind:
    """Return the kind of values that can stand in the place of a default."""
    if isinstance(default, bool):  # before numbers: to Python it is one
        return FLAG
    if isinstance(default, int | float):
        return NUMBER_KIND
    if isinstance(default, Mapping):
        return BLOCK
    return TEXT if isinstance(default, str) else FREE


def written(value: Any) -> str:
    """A value as it stands in an override: `true`, `null`, `0.5`, `name`, `[one,two]`."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written, value))}]"  # a space would end the override
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any) -> float | int | None:
    """`value` as a finite number, if it is one or is written as one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = value if isinstance(value, int) else float(value)
    except ValueError:
        return None
    return number if isinstance(number, int) or math.isfinite(number) else None
