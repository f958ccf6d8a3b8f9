"""The kinds of values of a key: a reason names the value, the limit and the nearest that is accepted."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlinf_async.core.config_keys import misspelt


class Kind:
    """Values of one kind; of this one they are judged elsewhere, or not at all."""

    words: str = "anything"
    """The words for values of this kind, after `must be`."""

    def accepts(self, value: Any) -> bool:
        """Return True if `value`, which is not None, is of this kind."""
        return True

    def near(self, value: Any) -> Any:
        """Return a value of this kind that the user may have meant by `value`; None where none is near."""
        return None


ANYTHING = Kind()
"""Of keys whose default, where they have one, tells of which kind they are."""
FREE = Kind()
"""Of keys that are not judged at all."""
FREE.words = "anything at all"


@dataclass(frozen=True)
class Real(Kind):
    """Finite numbers. A bool is none."""

    least: float | None = None
    most: float | None = None
    above: float | None = None

    @property
    def words(self) -> str:  # type: ignore[override]
        return ("a finite number" if None in (self._low, self.most) else "a number") + self._limits

    def accepts(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return is_finite(value) and self._is_above(value) and self._clip(value) == value

    def near(self, value: Any) -> Any:
        number = _number(value)
        # No number is the nearest above a bound.
        return None if number is None or not self._is_above(number) else self._clip(number)

    @property
    def _low(self) -> float | None:
        return self.least if self.above is None else self.above

    @property
    def _limits(self) -> str:
        low, high = self._low, self.most
        if low is None:
            return "" if high is None else f" of at most {high}"
        if high is None:
            return f" of at least {low}" if self.above is None else f" above {low}"
        return f" from {low} to {high}" if self.above is None else f" above {low} and at most {high}"

    def _is_above(self, value: float) -> bool:
        return self.above is None or value > self.above

    def _clip(self, value: Any) -> Any:
        value = value if self.least is None else max(value, self.least)
        return value if self.most is None else min(value, self.most)


class Whole(Real):
    """Whole numbers. A bool is none, and neither is 2.0."""

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"a whole number{self._limits}"

    def accepts(self, value: Any) -> bool:
        # Python's bool is an int.
        return isinstance(value, int) and not isinstance(value, bool) and bool(self._clip(value) == value)

    def near(self, value: Any) -> Any:
        number = _number(value)
        return None if number is None else self._clip(round(number))


@dataclass(frozen=True)
class Flag(Kind):
    """True and false."""

    words: str = "true or false"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, bool)

    def near(self, value: Any) -> Any:
        return bool(value) if type(value) is int and value in (0, 1) else None


@dataclass(frozen=True)
class Names(Kind):
    """One of several names."""

    names: Sequence[str]

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"one of {', '.join(self.names)}"

    def accepts(self, value: Any) -> bool:
        return type(value) in (str, int) and str(value) in self.names  # YAML reads 16 as a number

    def near(self, value: Any) -> Any:
        return misspelt(value, self.names) if isinstance(value, str) else None


@dataclass(frozen=True)
class Text(Kind):
    """Texts: paths, and names that somebody else knows."""

    words: str = "a text"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str)


@dataclass(frozen=True)
class Block(Kind):
    """Sections."""

    words: str = "a block of keys"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Mapping)


@dataclass(frozen=True)
class Listed(Kind):
    """One value of a kind, or a list of them."""

    kind: Kind

    @property
    def words(self) -> str:  # type: ignore[override]
        return f"{self.kind.words}{OR_A_LIST}"

    def accepts(self, value: Any) -> bool:
        return all(map(self.kind.accepts, value if isinstance(value, list | tuple) else [value]))

    def near(self, value: Any) -> Any:
        return self.kind.near(value)


COUNT_KIND, POSITIVE_NUMBER, SHARE_KIND = Whole(1), Real(above=0), Real(least=0, most=1)
SEED_KIND = Whole(0, 2**32 - 1)
"""The seeds that numpy's generators take."""
NUMBER = re.compile(
    r"a (?P<whole>whole )?(finite )?number( (of at least|from) (?P<least>\S+))?( above (?P<above>\S+))?"
    r"( (of at most|and at most|to) (?P<most>\S+))?"
)
OR_A_LIST = ", or a list of them"


def kind_of(words: str) -> Kind:
    """Return the kind with these `words`; other words than those of the classes here are those of a text.

    Raises:
        ValueError: they speak of a number, and are not those of one.
    """
    if number := NUMBER.fullmatch(words):
        limits = {name: int(number[name]) for name in ("least", "most", "above") if number[name]}
        return Whole(**limits) if number["whole"] else Real(**limits)
    if words.endswith(OR_A_LIST):
        return Listed(kind_of(words.removesuffix(OR_A_LIST)))
    if words.startswith("one of "):
        return Names(words.removeprefix("one of ").split(", "))
    if " number" in words:
        raise ValueError(f"the words {words!r} must be those of a number, as in {NUMBER.pattern}")
    return next((kind for kind in (ANYTHING, FREE, Flag(), Block()) if kind.words == words), Text(words))


def like(default: Any) -> Kind:
    """Return the kind of values that can stand in the place of a default."""
    if isinstance(default, bool):  # before numbers: to Python it is one
        return Flag()
    if isinstance(default, int | float):
        return Real()
    if isinstance(default, Mapping):
        return Block()
    return Text() if isinstance(default, str) else FREE


def is_finite(value: Any) -> bool:
    """Return True if a number is one that a float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:  # of a whole number with more than 308 digits
        return False


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
    return number if isinstance(number, int) or is_finite(number) else None
