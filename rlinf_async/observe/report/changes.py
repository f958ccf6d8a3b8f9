"""What a run has changed by itself, with `async.adapt`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlinf_async.observe.report.content import Section, Table
from rlinf_async.observe.report.formatting import NONE
from rlinf_async.observe.report.run_view import Subject
from rlinf_async.observe.run_dir import finite

MOST_ROWS = 200
HEADER = ("after step", "setting", "from", "to", "what", "guessed", "gained", "why")


def changes(subjects: Sequence[Subject]) -> list[Section]:
    """A table for each run that has changed something; no section if none has."""
    with_spans = [(subject, spans) for subject in subjects if (spans := _spans(subject))]
    if not with_spans:
        return []
    section = Section(
        id="changes",
        nav="Changes",
        title="What the run has changed by itself",
        sentence="With async.adapt: every trial of another setting, and whether it was kept. A gain is in "
        "throughput, with its standard error, over as many steps before and after.",
        tables=[_table(subject, spans, alone=len(with_spans) == 1) for subject, spans in with_spans],
    )
    return [section]


def _spans(subject: Subject) -> list[Mapping[str, Any]]:
    return [span for span in subject.run.spans if span["kind"] == "adapt"]


def _table(subject: Subject, spans: Sequence[Mapping[str, Any]], *, alone: bool) -> Table:
    return Table(
        header=HEADER,
        rows=[_row(span) for span in spans[-MOST_ROWS:]],
        note="" if alone else subject.label,
        numbers=False,
    )


def _row(span: Mapping[str, Any]) -> list[str]:
    cells = [str(span.get(name, NONE)) for name in ("step", "knob", "before", "after", "verdict")]
    guess, gain, error = (span.get(name) for name in ("guess", "gain", "error"))
    effect = f"{gain:+.1%} ± {error:.1%}" if finite(gain) and finite(error) else NONE
    return [*cells, f"{guess:.1%}" if finite(guess) else NONE, effect, str(span.get("because", NONE))]
