"""The amount of a resource that a process holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Held:
    """The amount of one resource that a process holds, and the most that it can hold."""

    value: float
    limit: float
