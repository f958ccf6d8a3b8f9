"""Dataclasses of plain data from an untrusted file."""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rlinf_async.observe.plain_data import finite

Event = TypeVar("Event")


def typed(kind: type[Event], record: dict[str, Any]) -> Event | None:
    """Return a dataclass of plain data; None if a field without a default is missing or has a wrong type.

    Other facts of a wrong type get their defaults, and facts that `kind` does not have are left out.
    """
    hashable: Any = kind
    hints = _hints(hashable)
    facts = {name: fact for name, fact in record.items() if name in hints and _fits(fact, hints[name])}
    try:
        return kind(**facts)
    except TypeError:
        return None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is UnionType:
        return any(_fits(value, each) for each in get_args(hint))
    if hint is float:
        return finite(value)
    return is_whole(value) if hint is int else isinstance(value, get_origin(hint) or hint)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and finite(value)
