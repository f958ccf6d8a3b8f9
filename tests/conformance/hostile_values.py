"""Values that environments may give where something else is expected, and the places where they may stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st


class RaisingMapping(Mapping[str, Any]):
    """It has fields, and nobody can read them."""

    def __getitem__(self, name: str) -> Any:
        raise SystemExit(3)

    def __iter__(self) -> Any:
        return iter(["states"])

    def __len__(self) -> int:
        raise StopIteration


class LeavesAsAnArray:
    def __array__(self, *_: object, **__: object) -> Any:
        raise KeyboardInterrupt


class LeavesWhenCopied:
    def __deepcopy__(self, memo: object) -> Any:
        raise GeneratorExit


class AnythingAtAll:
    """It has every attribute, and each of them is of its kind, and can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> Any:
        return self


def _round() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def _round_mapping() -> dict[str, Any]:
    ring: dict[str, Any] = {}
    ring["states"] = ring
    return ring


LEAVES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "a number": lambda: 7,
    "a number that is too great": lambda: 10**400,
    "a text": lambda: "states",
    "bytes": lambda: b"\xff",
    "a set": lambda: {1, 2},
    "an object": object,
    "anything": AnythingAtAll,
    "a type": lambda: int,
    "a generator": lambda: (one for one in ()),
    "a lambda": lambda: lambda: None,
    "a list in itself": _round,
    "a mapping in itself": _round_mapping,
    "a mapping that raises": RaisingMapping,
    "an array that raises": LeavesAsAnArray,
    "what cannot be copied": LeavesWhenCopied,
    "an empty tensor": lambda: torch.zeros(0),
    "a tensor of one": lambda: torch.tensor(1.0),
    "a tensor of nothing for each": lambda: torch.zeros(4, 0),
    "complex numbers": lambda: torch.zeros(4, 2, dtype=torch.complex64),
    "a sparse tensor": lambda: torch.zeros(4, 2).to_sparse(),
    "a tensor without memory": lambda: torch.zeros(4, 2, device="meta"),
    "an infinite tensor": lambda: torch.full((4, 2), float("inf")),
    "an array of objects": lambda: np.array([None, object()], dtype=object),
    "an array of texts": lambda: np.array(["a", "b", "c", "d"]),
    "an array of times": lambda: np.zeros(4, dtype="datetime64[s]"),
    "an array with fields": lambda: np.zeros(4, dtype=[("x", "f4")]),
    "a masked array": lambda: np.ma.masked_all((4, 2)),
    "a ragged list": lambda: [[1.0], [1.0, 2.0]],
    "other keys": lambda: {1: torch.zeros(4), None: 2},
}
PLACES = ("all", 0, 1, 2, 3, 4, "states", "task_descriptions", "a new field", "info", "more")
"""Of what a method gives: the whole, one of its parts, a field of the observation, or of the information."""
DEPTHS = ("bare", "in a list", "in a mapping", "for each")
FIELDS_OF_INFO = ("episode", "final_info", "final_observation", "intervene_action", "intervene_flag")


def put(given: Any, place: Any, value: Any, name: str) -> Any:
    """What a method gives, with `value` in a place of it; `name` is of a field of the information."""
    parts = list(given)
    if place == "all":
        return value
    if isinstance(place, int):
        return (*parts[:place], value, *parts[place + 1 :])
    if place == "more":
        return (*parts, value)
    if place == "info":
        last = parts[-1][-1] if isinstance(parts[-1], list) else parts[-1]
        return (
            *parts[:-1],
            [{**last, name: value}] if isinstance(parts[-1], list) else {**last, name: value},
        )
    seen = parts[0][-1] if isinstance(parts[0], list) else parts[0]
    changed = {**seen, place: value}
    return ([changed] if isinstance(parts[0], list) else changed, *parts[1:])


def _deep(leaf: str, depth: str) -> Any:
    value = LEAVES[leaf]()
    if depth == "in a list":
        return [value]
    if depth == "in a mapping":
        return {"deep": {"er": value}}
    return [value] * 4 if depth == "for each" else value


@st.composite
def alterations(draw: Any) -> Callable[[Any], Any]:
    """Says, of what a method gives, what it gives instead."""
    place, leaf, depth = (draw(st.sampled_from(each)) for each in (PLACES, tuple(LEAVES), DEPTHS))
    name = draw(st.sampled_from(FIELDS_OF_INFO)) if place == "info" else ""

    def alter(given: Any) -> Any:
        return put(given, place, _deep(leaf, depth), name)

    alter.__qualname__ = f"put({place!r} {name!r}, {leaf} {depth})"
    return alter
