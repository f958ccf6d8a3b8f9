"""The readable files in the directory of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.core.config_keys import clipped, lookup
from rlinf_async.observe.events import ENDING_WORDS, Status
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.read_files import finite
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import Process, Span


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """The records of one run; missing records are empty, and `missing` has sentences about them.

    Running and crashed runs, and runs with truncated files, can be read, too. If a run was started several
    times in one directory, the last record of a repeated step counts.
    """

    path: Path
    name: str
    """The name of the directory."""
    config: dict[str, Any]
    facts: dict[str, Any]
    """The content of `run.json`."""
    metrics: list[dict[str, float]]
    """The finite numbers of each step, in order."""
    summary: dict[str, Any]
    status: Status | None
    spans: list[Span]
    faults: list[Fault] = field(default_factory=list)
    missing: list[str]
    """Sentences on missing records, and on the consequences for the page."""

    @classmethod
    def read(cls, path: Path) -> RunFiles:
        """Read the records in the directory `path`.

        Raises:
            ValueError: `path` is no run directory; the message has the reason.
        """
        _check(path)
        records = RunReader(path)
        run = cls(
            path=path,
            name=path.resolve().name,
            config=records.config(),
            facts=records.facts(),
            metrics=records.metrics(),
            summary=records.summary(),
            status=records.status(),
            spans=[],
            faults=records.faults(),
            missing=records.problems,
        )
        spans = _spans(records.places.trace, records.problems)
        run.spans.extend(_of_present_shards(spans, run.facts, records.problems))
        run.missing.extend(_what_follows(run))
        return run

    @property
    def stock(self) -> bool:
        """True if RLinf's own loop ran here, which writes none of our records."""
        records = (self.facts, self.metrics, self.summary, self.status, self.spans)
        return not any(records) and RunDir(self.path).tensorboard.is_dir()

    @property
    def has_driver(self) -> bool:
        """True if a process of its own drove the run, and recorded its steps."""
        return self.facts.get("driver") is not False

    def setting(self, key: str, default: object = None) -> Any:
        """Return the value of a dotted key of the config."""
        value = lookup(self.config, key)
        return default if value is None else value


def _check(path: Path) -> None:
    try:
        if not path.exists():
            raise ValueError(f"{path} does not exist; name the directory that the run said when it began")
        if not path.is_dir():
            raise ValueError(f"{path} is a file; give the directory of the run")
        files = {each.name for each in path.iterdir()}
    except OSError as error:
        raise ValueError(f"{clipped(str(path))} cannot be read: {error.strerror}") from error
    names = RunDir(path).known_by
    if files.isdisjoint(names):
        raise ValueError(f"{path} is no run directory: it has none of {', '.join(names)}")


def _spans(path: Path, missing: list[str]) -> list[Span]:
    if not path.is_dir():
        return []
    try:
        spans = [span for span in read_spans(path) if _lasts(span)]
    except (OSError, ValueError, TypeError, OverflowError) as error:
        missing.append(f"trace/ cannot be read ({type(error).__name__}).")
        return []
    cut = _started_again(spans)
    if cut is None:
        return spans
    missing.append("The trace holds an earlier start of this run too, which is left out.")
    return [span for span in spans if span["began"] >= cut]


def _of_present_shards(spans: list[Span], facts: Mapping[str, Any], missing: list[str]) -> Sequence[Span]:
    """Return the spans since the run has taken the shards of its plan; shards before have the same names."""
    since = facts.get("shards_since")
    if not finite(since):
        return spans
    missing.append("The trace from before the run has changed its number of shards is left out.")
    return [span for span in spans if span["began"] >= since]


def _lasts(span: Span) -> bool:
    return finite(span["began"]) and finite(span["ended"]) and span["began"] <= span["ended"]


def _started_again(spans: Sequence[Span]) -> float | None:
    """Return the time at which the start before the last one ended its last step; None for a single start."""
    cut, last = None, None
    for span in spans:
        if span["process"] != Process.DRIVER or span["kind"] != "learn" or not finite(span.get("step")):
            continue
        if last is not None and span["step"] <= last["step"]:
            cut = last["ended"]
        last = span
    return cut


def _what_follows(run: RunFiles) -> list[str]:
    """Return sentences about missing records, and about the parts of the page that lack for them."""
    if run.stock:
        return [
            "This is a run of RLinf's own script, with every level off: it has TensorBoard events and none "
            "of the records that this page is made of, so that nothing but its config is shown. "
            "`rlinf-async train` with async.mode=off leaves them."
        ]
    sentences = []
    if not run.config:
        sentences.append("There is no readable config.yaml: advice assumes the defaults.")
    if not run.facts:
        sentences.append(
            "There is no readable run.json: versions, levels and the plan of the run are unknown."
        )
    if not run.metrics:
        sentences.append(
            "No step has been reported in metrics.jsonl: there are no rates, busy shares or curves."
        )
    if not run.summary:
        sentences.append("There is no summary.json, " + _not_ended(run))
    elif (how := ENDING_WORDS.get(str(run.summary.get("ended")))) is not None:
        sentences.append(f"The run {how} before its last step; summary.json says why.")
    if not run.spans:
        sentences.append(
            "There is no trace: what processes waited for, time lines and histograms cannot be shown."
        )
    elif run.facts.get("stock") is True:
        sentences.append(
            "RLinf's own loop has run here, with every level off: its workers record no waits, so that busy "
            "shares are what they say they took of a step."
        )
    elif run.has_driver and not any(span["process"] == Process.DRIVER for span in run.spans):
        sentences.append(
            "The trace lacks the driver: shares are of the time from the first to the last record."
        )
    return sentences


def _not_ended(run: RunFiles) -> str:
    why = "because the run has not ended in order: it is going on, was interrupted or has failed"
    seen = run.status and f"; it was last seen at step {run.status.step} of {run.status.total}"
    return f"{why}{seen or ''}."
