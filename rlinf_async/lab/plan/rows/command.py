"""The command `rlinf-async plan --rows`: calibrate on synchronous rows, plan all, and tell the errors."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rlinf_async.lab.outputs import write_json
from rlinf_async.lab.plan.rows.costs import Calibration, calibrate, most_telling
from rlinf_async.lab.plan.rows.row import Row, read_rows
from rlinf_async.lab.plan.rows.virtual import step_of
from rlinf_async.lab.table import screen
from rlinf_async.observe.files import make_directory

TABLE_HEAD = ("run", "levels", "GPUs", "s a step", "planned", "error")
CALIBRATING_ROWS = 4
"""Synchronous rows of each workload that calibrate, unless the table says which."""


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """A row, and its plan."""

    row: Row
    planned_s: float
    calibrates: bool

    @property
    def error(self) -> float | None:
        """By how much the planned step is longer, as a share of the measured one; None where none is."""
        return self.planned_s / self.row.step_s - 1.0 if self.row.step_s else None

    @property
    def held_out(self) -> bool:
        """True if the plan can be compared with a step time that it has not seen."""
        return self.row.step_s > 0 and not self.calibrates


@dataclass(frozen=True, kw_only=True)
class RowsPlan:
    """The result for a table."""

    rows: tuple[PlannedRow, ...]
    calibrations: dict[str, Calibration]
    """By workload."""

    @property
    def headline(self) -> str:
        """The errors on rows that were held out, and the rows that calibrated."""
        held_out = [one for one in self.rows if one.held_out]
        parts = [
            _errors(kind, [one for one in held_out if one.row.synchronous == synchronous])
            for kind, synchronous in (("synchronous", True), ("asynchronous", False))
        ]
        errors = "; ".join(filter(None, parts)) or "no row, so that nothing says how good this plan is"
        calibrating = sum(one.calibrates for one in self.rows)
        return f"Held out: {errors}. Calibrated on {calibrating} of {len(self.rows)} rows."

    @property
    def notes(self) -> Iterator[str]:
        """Sentences on what the rows do not tell."""
        for workload, found in self.calibrations.items():
            if found.untold:
                of = f" of {workload}" if workload else ""
                yield (
                    f"The rows{of} do not tell apart: {', '.join(found.untold)}. Rows of hybrid placement "
                    "or of another ratio do, or rollout_s and training_s."
                )
        if any(one.row.asynchronous_in_vain for one in self.rows):
            yield (
                "Where learner and rollouts share GPUs, levels 1 and 3 are planned as off: what they gain "
                "there is not known."
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "headline": self.headline,
            "costs": {name: asdict(found.costs) for name, found in self.calibrations.items()},
            "notes": list(self.notes),
            "rows": [
                {
                    **asdict(one.row),
                    "planned_s": one.planned_s,
                    "error": one.error,
                    "calibrates": one.calibrates,
                }
                for one in self.rows
            ],
        }


def plan_rows(path: Path, *, count: int = CALIBRATING_ROWS) -> RowsPlan:
    """Plan every row of a table, from `count` synchronous ones of each workload or those that it marks.

    Raises:
        ValueError: the table cannot be read, or a workload has no row to calibrate on.
    """
    rows = read_rows(path)
    workloads = dict.fromkeys(row.workload for row in rows)
    calibrations = {
        name: _calibrated([row for row in rows if row.workload == name], name, count) for name in workloads
    }
    planned = []
    for row in rows:
        found = calibrations[row.workload]
        calibrates = any(row is one for one in found.rows)
        planned.append(PlannedRow(row=row, planned_s=step_of(row, found.costs), calibrates=calibrates))
    return RowsPlan(rows=tuple(planned), calibrations=calibrations)


def _calibrated(rows: list[Row], workload: str, count: int) -> Calibration:
    known = [row for row in rows if row.synchronous and row.step_s]
    marked = [row for row in rows if row.calibrate == "yes"]
    if strange := [row for row in marked if row not in known]:
        raise ValueError(
            f"{strange[0].name}, mode {strange[0].mode}, on {strange[0].gpus} GPUs cannot calibrate: only a "
            "synchronous row with its step_s can"
        )
    try:
        return calibrate(marked or most_telling([row for row in known if row.calibrate != "no"], count))
    except ValueError as error:
        raise ValueError(f"workload {workload!r}: {error}") from error


def _errors(kind: str, rows: Iterable[PlannedRow]) -> str:
    errors = [abs(one.error) for one in rows if one.error is not None]
    if not errors:
        return ""
    plural = "" if len(errors) == 1 else "s"
    mean = statistics.fmean(errors)
    return f"{len(errors)} {kind} row{plural}, mean error {mean:.1%}, largest {max(errors):.1%}"


def show(plan: RowsPlan, console: Console) -> None:
    """All of it for a reader; the errors come first."""
    console.print(plan.headline, soft_wrap=True)
    console.print(screen(TABLE_HEAD, [_cells(one) for one in plan.rows], space=1))
    for note in plan.notes:
        console.print(note, markup=False, soft_wrap=True)


def write(plan: RowsPlan, folder: Path, *, say: Callable[[str], None]) -> None:
    """Write the plan as JSON."""
    make_directory(folder)
    write_json(folder / "plan.json", plan.as_dict())
    say(f"plan in {folder / 'plan.json'}")


def _cells(one: PlannedRow) -> tuple[str, ...]:
    row = one.row
    error = "" if one.error is None else f"{one.error:+.1%}"
    return (
        row.name,
        row.mode,
        str(row.gpus),
        f"{row.step_s:.1f}" if row.step_s else "",
        f"{one.planned_s:.1f}",
        "(seen)" if one.calibrates else error,
    )
