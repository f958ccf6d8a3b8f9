"""What a run has expected of another number of shards, and what it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.shard_fit import ShardFit
from rlinf_async.lab.report.measures import durations
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.observe.read_files import finite


def remark(subject: Subject) -> str:
    """Return sentences on the numbers of shards that a run has chosen after its first steps; "" if none."""
    fits = [fit for plain in subject.run.facts.get("shard_fits", []) if (fit := _fit(plain)) is not None]
    if not fits:
        return ""
    words = f"{subject.label}: after the first steps, {'; then, '.join(map(str, fits))}."
    changes = [fit for fit in fits if fit.shards != fit.before]
    spans = subject.run.spans
    steps, answers = durations(spans, "step"), durations(spans, "ask")
    if not changes or not steps or not answers:
        return words
    decision_s = sum(steps) / len(steps) + sum(answers) / len(answers)
    # A decision of a joined shard is one of each of its members, so that as many are made in each round.
    was = changes[-1].decision_s / decision_s
    took = f"a decision of a shard took {decision_s * 1000:.0f} ms from then on, with its waits"
    return f"{words} After the last change env workers made {was:.2f} times the decisions: {took}."


def _fit(plain: object) -> ShardFit | None:
    if not isinstance(plain, Mapping):
        return None
    facts: dict[str, Any] = dict(plain)
    try:
        rates = {int(number): float(rate) for number, rate in facts.pop("rates").items()}
        fit = ShardFit(**facts, rates=rates)
        numbers = [fit.gain, fit.step_s, fit.answer_s, fit.work_s, fit.decision_s, *rates.values()]
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return None
    return fit if all(finite(number) and number > 0 for number in numbers) else None
