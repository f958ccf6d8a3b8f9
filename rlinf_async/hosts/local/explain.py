"""What `explain` says of a config of the local host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from rlinf_async.config import words
from rlinf_async.hosts import dead_work, explanation
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster
from rlinf_async.hosts.local.config import checked, remarks_of


def explain(cfg: DictConfig, cluster: AssumedCluster) -> dict[str, Any]:
    """Return what a run of `cfg` would be, as plain data."""
    if cluster != THIS_MACHINE:
        raise ValueError("a run of the local host is one process of this machine: it takes no cluster")
    settings = checked(cfg)
    return {
        "mode": settings.asynchrony.mode,
        "levels": settings.asynchrony.levels,
        "max_staleness": settings.asynchrony.max_staleness,
        "correction": settings.asynchrony.correction,
        "skip": settings.asynchrony.skip.kinds,
        "dead_work": dead_work.of_own_workers(
            settings.asynchrony,
            steps_per_decision=settings.run.steps_per_decision,
            skips_ended=settings.run.skips_ended,
            left_out=settings.run.left_out,
        ),
        "streams": settings.run.streams,
        "optimizer_steps": settings.run.optimizer_steps,
        **asdict(settings.plan),
        "remarks": remarks_of(cfg, settings),
    }


def show(facts: Mapping[str, Any], console: Console) -> None:
    """Print the facts of `explain` as a table."""
    rows = [
        (name, words(value) if name == "levels" else str(value))
        for name, value in facts.items()
        if name not in ("remarks", "skip", "dead_work")
    ]
    explanation.show_rows([*rows, *dead_work.rows(facts)], facts["remarks"], console)
