"""RLinf's simulators that may stand still once their episodes have ended, as each has its own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMINED_SIMULATORS: frozenset[str] = frozenset({"libero", "metaworld"})
"""RLinf's environments with outputs that were shown to be the same, frame by frame and over resets, whether
ended simulators are stepped or stand still (`benchmarks/dead_work/standing.py`)."""


def stands(section: Mapping[str, Any]) -> bool:
    """Return True if simulators of an `env` section may stand still."""
    return not section.get("env_class") and str(section.get("env_type")) in EXAMINED_SIMULATORS
