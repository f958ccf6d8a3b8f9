"""The section on work that a run has left out, as no result depends on it, and what it would have cost.

A share is measured, and so are the seconds of what was done. What was left out is taken to cost as much: a
share of a quarter would have cost a third of those seconds. That is an estimate, of one kind of process:
processes work side by side, so that the clock would have run on by less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlinf_async.lab.report.content import Section, Table
from rlinf_async.lab.report.formatting import duration, share
from rlinf_async.lab.report.measures import durations, mean_of
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.observe.events import FRAMES_DRAWN_METRIC
from rlinf_async.observe.spans import Span

METRIC = "async/skipped/{}"
ENV_STEPS = "async/env_steps"
"""What each step of a run counts by: environment steps of a synchronous loop."""
FRAMES_REMARK = (
    "What the frames would have cost is not known where environments do not measure how long they draw; a "
    "run with async.skip.frames=false tells (rlinf-async sweep --vary async.skip.frames=true,false)."
)


Metrics = Sequence[Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of work, and the work of the same kind that was done."""

    name: str
    words: str
    done: str
    """The work that took the seconds behind the estimate."""
    seconds: Callable[[Metrics, Sequence[Span]], float]
    """Return the seconds of that work in a run's metrics or trace; 0 if no record has them."""


def _of_kind(kind: str) -> Callable[[Metrics, Sequence[Span]], float]:
    return lambda _, spans: sum(durations(spans, kind))


def _of_frames(metrics: Metrics, _: Sequence[Span]) -> float:
    return sum(step.get(FRAMES_DRAWN_METRIC, 0.0) for step in metrics)


def _of_learner(_: Metrics, spans: Sequence[Span]) -> float:
    """Seconds of passes over samples: of micro-batches, or of all training where those were not recorded."""
    passes = sum(durations(spans, "micro-batch"))
    if not passes:
        whole = sum(sum(durations(spans, kind)) for kind in ("accept", "finish"))
        passes = max(0.0, whole - sum(durations(spans, "optimizer step")))
    return passes + sum(durations(spans, "score"))


KINDS: tuple[Kind, ...] = (
    Kind(
        name="frames",
        words="frames that nobody looks at",
        done="frames that were drawn",
        seconds=_of_frames,
    ),
    Kind(
        name="env_steps",
        words="environment steps after an end",
        done="steps of shards",
        seconds=_of_kind("step"),
    ),
    Kind(
        name="decisions",
        words="decisions after an end",
        done="forward passes of inference ranks",
        seconds=_of_kind("forward"),
    ),
    Kind(
        name="samples",
        words="samples without a gradient, in each epoch",
        done="passes over samples, of learner ranks and of inference ranks that score for them",
        seconds=_of_learner,
    ),
)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """What a run has left out of one kind of work."""

    kind: Kind
    share: float
    """Of what the synchronous loop does."""
    done_s: float
    """Seconds of what was done, of all processes together; 0 where they are not known."""

    @property
    def saved_s(self) -> float | None:
        """Seconds that the rest would have cost, as an estimate."""
        if not self.done_s or self.share >= 1:
            return None
        return self.done_s * self.share / (1 - self.share)


def left_out(metrics: Metrics, spans: Sequence[Span]) -> list[LeftOut]:
    """Return what a run has left out of each kind of which it has left out anything."""
    found = []
    for kind in KINDS:
        part = mean_of(metrics, METRIC.format(kind.name), weight=ENV_STEPS)
        if part:
            found.append(LeftOut(kind=kind, share=part, done_s=kind.seconds(metrics, spans)))
    return found


def section(subjects: Sequence[Subject]) -> Section:
    """A table for each run that has left out anything."""
    found = [(subject, left_out(subject.run.metrics, subject.run.spans)) for subject in subjects]
    some = [(subject, kinds) for subject, kinds in found if kinds]
    frames = any(each.kind.name == "frames" and not each.done_s for _, kinds in some for each in kinds)
    return Section(
        id="left-out",
        nav="Left out",
        title="Work that was left out, as no result depends on it",
        sentence="Shares of what the synchronous loop does, over the whole run, and an estimate of the "
        "seconds that they would have cost: as many for each step, decision or sample as those that were "
        "made took. Seconds are of all processes of a kind together, which work side by side.",
        tables=[_table(subject, kinds, alone=len(subjects) == 1) for subject, kinds in some],
        remarks=[FRAMES_REMARK] if frames else [],
    )


def _table(subject: Subject, kinds: Sequence[LeftOut], *, alone: bool) -> Table:
    rows = [
        [
            each.kind.words,
            share(each.share),
            duration(each.saved_s),
            duration(each.done_s or None),
            each.kind.done if each.done_s else "",
        ]
        for each in kinds
    ]
    header = ("left out", "share", "would have cost, estimated", "as what was done took", "")
    return Table(header=header, rows=rows, note="" if alone else subject.label)
