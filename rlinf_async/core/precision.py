"""The precisions of numbers, by any of their names."""

from __future__ import annotations

from collections.abc import Iterable

PRECISION_NAMES = {
    "32": "fp32",
    "32-true": "fp32",
    "float32": "fp32",
    "16": "fp16",
    "16-mixed": "fp16",
    "float16": "fp16",
    "bf16-mixed": "bf16",
    "bfloat16": "bf16",
}
"""The frameworks' other names of precisions."""

BYTES_OF_PRECISION = {"fp32": 4, "fp16": 2, "bf16": 2}


def precision_of(name: object) -> str:
    """Return `fp32`, `fp16` or `bf16` for any of their names; other names are returned unchanged."""
    return PRECISION_NAMES.get(str(name), str(name))


def bytes_of(precision: object, *, default: int) -> int:
    """Return the bytes per number of a precision, by any of its names; `default` for an unknown one."""
    return BYTES_OF_PRECISION.get(precision_of(precision), default)


def any_in_half(precisions: Iterable[object]) -> bool:
    """Return True if one of `precisions` has 16 bits."""
    return any(bytes_of(precision, default=0) == 2 for precision in precisions)
