"""The averages of the runs of each setting, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from rlinf_async.lab.sweep.cell import SweepCell
from rlinf_async.lab.sweep.plan import Sweep
from rlinf_async.lab.sweep.settings import Setting, short
from rlinf_async.lab.sweep.steps import Averages
from rlinf_async.lab.table import Range

QUANTITY_NAMES = tuple(field.name for field in fields(Averages))


@dataclass(frozen=True)
class Outcomes:
    """The results of the runs of a setting; runs that have not ended are in neither field."""

    measured: Mapping[int, Averages]
    """The runs that could be measured, by their seeds."""
    failures: tuple[str, ...] = ()
    """A sentence for each run that failed: which one, of what, and where its log is."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A setting in the table.

    `increase` is that of its mean throughput over that of `off` with the same values, on the seeds that both
    have.
    """

    setting: str
    """The levels, by name."""
    values: Mapping[str, str]
    """The values of the varied keys, by key."""
    seeds: int
    """The number of seeds that have been measured."""
    failures: tuple[str, ...]
    quantities: Mapping[str, Range | None]
    """Ranges over seeds, by the names of `Averages`."""
    increase: float | None

    @property
    def name(self) -> str:
        """The setting and what is varied."""
        return " ".join([self.setting, *(f"{short(key)}={value}" for key, value in self.values.items())])


def outcomes(sweep: Sweep) -> dict[Setting, Outcomes]:
    """Return the results of the runs of a sweep, in the order of its settings."""
    return {setting: _outcomes(sweep.cells_of(setting)) for setting in sweep.settings}


def _outcomes(cells: Sequence[SweepCell]) -> Outcomes:
    records = [(cell, record) for cell in cells if (record := cell.record()) is not None]
    return Outcomes(
        {cell.seed: cell.measure() for cell, record in records if record.status == "done"},
        tuple(
            f"{cell.name} failed: {record.error}; log: {cell.log}" for cell, record in records if record.error
        ),
    )


def rows(settings: Mapping[Setting, Outcomes]) -> list[Row]:
    """One row per setting; its quantities are means over seeds."""
    off = {setting.values: one.measured for setting, one in settings.items() if not setting.active}
    return [
        Row(
            setting=setting.levels_name,
            values=dict(setting.values),
            seeds=len(one.measured),
            failures=one.failures,
            quantities={
                name: Range.of([getattr(run, name) for run in one.measured.values()], statistics.mean)
                for name in QUANTITY_NAMES
            },
            increase=_increase(one.measured, off.get(setting.baseline, {})) if setting.active else None,
        )
        for setting, one in settings.items()
    ]


def _increase(runs: Mapping[int, Averages], off: Mapping[int, Averages]) -> float | None:
    shared = runs.keys() & off.keys()
    if not shared:
        return None
    rate, base = (sum(one[seed].env_steps_per_s for seed in shared) for one in (runs, off))
    return rate / base - 1
