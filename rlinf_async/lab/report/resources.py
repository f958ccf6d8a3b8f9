"""The section on the resources that the processes of a run hold, and on those that will run out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async.core.growth import Held
from rlinf_async.lab.report.content import Section, Table
from rlinf_async.lab.report.formatting import NO_VALUE
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.observe.resources import amount, as_held, growth_in_words


def resources(subjects: Sequence[Subject]) -> Section:
    """Return the section with a table for each run, of each process's resources at the last sample.

    Predicted ends of resources are remarks.
    """
    tables = [table for subject in subjects if (table := _table(subject, alone=len(subjects) == 1))]
    return Section(
        id="resources",
        nav="Resources",
        title="What processes hold",
        sentence="Memory, descriptors and threads of each process, and shared memory and disk of the run, at "
        "the last sample, and how they grew before it. Steady is less than 1 % a minute.",
        tables=tables,
        remarks=[sentence for subject in subjects for sentence in _foretold(subject)],
    )


def _table(subject: Subject, *, alone: bool) -> Table | None:
    status = subject.run.status
    holdings = {} if status is None else status.holds
    found = {name: as_held(held) for name, held in holdings.items()}
    columns = list(dict.fromkeys(what for held in found.values() for what in held))
    if not columns:
        return None
    rows = []
    for name, held in found.items():
        cells = [_cell(what, holdings[name], held) for what in columns]
        rows.append([name, *cells])
    return Table(header=["", *columns], rows=rows, note="" if alone else subject.label)


def _cell(what: str, holding: Mapping[str, Any], held: Mapping[str, Held]) -> str:
    if what not in held:
        return NO_VALUE
    growth = growth_in_words(what, holding[what])
    return ", ".join(filter(None, (amount(what, held[what].value), growth)))


def _foretold(subject: Subject) -> list[str]:
    status = subject.run.status
    return [] if status is None else [str(sentence) for sentence in status.foretold.values()]
