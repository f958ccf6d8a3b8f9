"""RLinf's simulators in processes of their own that may be left alone once their episodes have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup

EXAMINED_SIMULATORS: frozenset[str] = frozenset({"libero", "metaworld"})
"""RLinf's environments that were shown, frame by frame and over resets, to be what they would be if those
that are left alone had been stepped (`benchmarks/dead_work/standing.py`)."""


def stands(section: Mapping[str, Any]) -> bool:
    """Return True if simulators of an `env` section can be left alone."""
    own_class = lookup(section, "env_class")
    return not own_class and str(lookup(section, "env_type")) in EXAMINED_SIMULATORS
