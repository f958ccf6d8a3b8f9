"""The facts that all runs of one config share, whichever levels are on, in keys that are its host's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """By which keys runs of a config are told apart, and what has to be known to compare them."""

    run_dir: str
    """The key of the directory that a run writes into."""
    steps: tuple[str, int]
    """The key that says after how many steps a run ends, and how many these are."""
    seeds: Mapping[str, int]
    """Keys that hold a seed, and what the config gives them; the first is that of the run."""
    overrides: tuple[str, ...] = ()
    """Overrides of every run besides those of its user."""
    off: str
    """The runner that runs while all levels are off, in a sentence."""
    stock: StockRuns | None = None
    """The reader of the framework's own runs; None where runs with all levels off are this package's, too."""


@dataclass(frozen=True, kw_only=True)
class StockRuns:
    """Facts that runs of a framework's own runner do not record by themselves."""

    env_steps: int
    """Environment steps that a step trains for the first time."""
    stages: int
    """Pipeline stages of an env worker, which it steps one after the other."""
