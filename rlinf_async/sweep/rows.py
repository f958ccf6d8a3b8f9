"""What the runs of each setting amount to, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from rlinf_async.sweep.cell import Cell
from rlinf_async.sweep.plan import Sweep
from rlinf_async.sweep.settings import Setting
from rlinf_async.sweep.steps import Measurement

QUANTITIES = tuple(field.name for field in fields(Measurement))


@dataclass(frozen=True)
class Results:
    """What is known of a setting; runs that have not ended are in neither."""

    measured: Mapping[int, Measurement]
    """By seed."""
    failures: tuple[str, ...] = ()
    """Which run failed, of what, and where its log is."""


@dataclass(frozen=True)
class Range:
    """Mean, lowest and highest over seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Range | None:
        """None where nothing was reported."""
        there = [value for value in values if value is not None]
        return cls(statistics.mean(there), min(there), max(there)) if there else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A setting. `increase` is of its mean throughput over that of off, on the seeds that both have."""

    setting: str
    seeds: int
    """That have been measured."""
    failures: tuple[str, ...]
    quantities: Mapping[str, Range | None]
    """By the names of `Measurement`."""
    increase: float | None


def results(sweep: Sweep) -> dict[Setting, Results]:
    """What the runs of a sweep have left, in the order of its settings."""
    return {setting: _results(sweep.cells_of(setting)) for setting in sweep.settings}


def _results(cells: Sequence[Cell]) -> Results:
    records = [(cell, record) for cell in cells if (record := cell.record()) is not None]
    return Results(
        {cell.seed: cell.measure() for cell, record in records if record.status == "done"},
        tuple(
            f"{cell.name} failed: {record.error}; log: {cell.log}" for cell, record in records if record.error
        ),
    )


def rows(found: Mapping[Setting, Results]) -> list[Row]:
    """One per setting."""
    off = next((one.measured for setting, one in found.items() if not setting.active), {})
    return [
        Row(
            setting=setting.name,
            seeds=len(one.measured),
            failures=one.failures,
            quantities={
                name: Range.of([getattr(run, name) for run in one.measured.values()]) for name in QUANTITIES
            },
            increase=_increase(one.measured, off) if setting.active else None,
        )
        for setting, one in found.items()
    ]


def _increase(mine: Mapping[int, Measurement], off: Mapping[int, Measurement]) -> float | None:
    shared = mine.keys() & off.keys()
    if not shared:
        return None
    ours, theirs = (sum(runs[seed].env_steps_per_s for seed in shared) for runs in (mine, off))
    return ours / theirs - 1
