"""Checks of a policy's settings before the policy is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

MAX_DIMENSION = 2**31 - 1
"""Largest dimension of a layer."""


def settings_of(kind: type[T], section: Mapping[str, Any]) -> T:
    """Return the settings `kind` from the fields of a model section; the section's other keys are the host's.

    Raises:
        TypeError: a size is missing.
        ValueError: no policy has such sizes.
    """
    return kind(**{field.name: section[field.name] for field in fields(kind) if field.name in section})


def check_fields(settings: DataclassInstance) -> None:
    """Check that every field has its type: a size, a number, or true or false.

    Raises:
        ValueError: a field has another type.
    """
    for field in fields(settings):
        if right := _instead_of(getattr(settings, field.name), field):
            raise ValueError(f"{field.name} must be {right}, got {getattr(settings, field.name)}")


def _instead_of(value: Any, field: Field[Any]) -> str:
    """Return the words for the type that a value should have; "" if it has it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if field.type == "bool":
        return "" if isinstance(value, bool) else "true or false"
    if field.type == "float":
        return "" if number and isfinite(value) else "a finite number"
    if not number or not isinstance(value, int):
        return "a whole number"
    if value > MAX_DIMENSION:
        return f"at most {MAX_DIMENSION}"
    return "" if value >= 1 else "at least 1"
