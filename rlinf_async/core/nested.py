"""Nested mappings, by dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a.b": value}` of nested mappings; a list is a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def lookup(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    value: Any = tree
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value
