"""The faults of a run, and the reactions to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async.lab.report.content import Section, Table
from rlinf_async.lab.report.formatting import NO_VALUE, duration
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.observe.plain_data import finite

MOST_ROWS = 200
FAULT_COLUMNS = ("after", "process", "shard", "what", "error", "what was done", "lost", "took")


def faults(subjects: Sequence[Subject]) -> Section:
    """A table for each run in which something has failed."""
    faulty = [subject for subject in subjects if subject.run.faults]
    return Section(
        id="faults",
        nav="Faults",
        title="What has failed, and what was done about it",
        sentence="Every fault: who has failed, what it cost, and how long it took until work went on. Of "
        "errors only the types are shown; failures.jsonl in the run directory has their words.",
        tables=[_table(subject, alone=len(faulty) == 1) for subject in faulty],
    )


def _table(subject: Subject, *, alone: bool) -> Table:
    faults, began = subject.run.faults, subject.run.facts.get("began")
    counts, count = subject.run.fault_counts, min(len(faults), MOST_ROWS)
    left_out = f" The last {count} are shown." if counts.kinds.total() > count else ""
    return Table(
        header=FAULT_COLUMNS,
        rows=[_row(fault, began) for fault in faults[-MOST_ROWS:]],
        note=f"{'' if alone else f'{subject.label}: '}{counts}.{left_out}",
        numbers=False,
    )


def _row(fault: Mapping[str, Any], began: object) -> list[str]:
    after = duration(fault["time"] - began) if finite(began) and fault["time"] >= began else NO_VALUE
    took = fault.get("seconds")
    cells = [str(fault.get(name, NO_VALUE)) for name in ("process", "shard", "what")]
    kind = str(fault.get("error")).partition(":")[0]
    error = kind if kind.isidentifier() else NO_VALUE
    words = [str(fault.get(name, NO_VALUE)) for name in ("action", "lost")]
    return [after, *cells, error, *words, duration(took) if finite(took) else NO_VALUE]
