"""One run of a page, with all values that are computed once from its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.lab.report.advice import Advice, Facts, advise
from rlinf_async.lab.report.measures import Measures, measure
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.timelines import (
    Interval,
    StepInterval,
    Timeline,
    measured,
    steps_of,
    timelines_of,
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run that may be shown."""

    index: int
    label: str
    """The name of the run's directory, with a number where several have the same."""
    run: RunFiles
    measures: Measures
    advice: Sequence[Advice]
    timelines: Sequence[Timeline]
    steps: Sequence[StepInterval]
    window: Interval | None
    """The time interval that shares refer to; None without a trace."""

    @classmethod
    def of(cls, run: RunFiles, *, index: int, label: str) -> Subject:
        """Compute the view of `run`, which `redact.run` has to have cleaned."""
        measures = measure(run)
        facts = Facts.of(run, measures)
        return cls(
            index=index,
            label=label,
            run=run,
            measures=measures,
            advice=advise(facts),
            timelines=timelines_of(run.spans),
            steps=steps_of(run.spans),
            window=measured(run.spans),
        )


def subjects(runs: Sequence[RunFiles]) -> list[Subject]:
    """Return the views of `runs` in their order, with unique labels."""
    counts: dict[str, int] = {}
    views = []
    for index, run in enumerate(runs):
        counts[run.name] = count = counts.get(run.name, 0) + 1
        label = run.name if count == 1 else f"{run.name} ({count})"
        views.append(Subject.of(run, index=index, label=label))
    return views
