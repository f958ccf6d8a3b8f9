"""How the simulators of an `env` section can be split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.sharding import SEPARATE_SIMULATORS, SHARED_SIMULATORS, VECTORISED_SIMULATORS, Splitting


def splitting(train: Mapping[str, Any]) -> Splitting:
    """Return how the simulators of an `env` section can be split; `unknown` for a simulator in no table.

    This package's Meta-World, recognised by its key `processes`, counts as `together`; so do environments
    that a package declares, which are built in the process of their env worker.
    """
    simulator = str(train["env_type"])
    if simulator in VECTORISED_SIMULATORS:
        return "vectorised"
    if simulator in SEPARATE_SIMULATORS and "processes" not in train:
        return "apart"
    if simulator in SEPARATE_SIMULATORS | SHARED_SIMULATORS or train.get("env_class"):
        return "together"
    return "unknown"


def one_batch(train: Mapping[str, Any]) -> bool:
    """Return True if the simulators of an `env` section are, or may be, one batch that a split slows down."""
    return splitting(train) in ("vectorised", "unknown")


def simulators_apart(train: Mapping[str, Any]) -> bool:
    """Return True if the simulators of an `env` section have a process each."""
    return splitting(train) == "apart"
