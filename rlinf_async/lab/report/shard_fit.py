"""What a run has expected of another number of shards, and what it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlinf_async.core.shard_fit import ShardFit
from rlinf_async.lab.report.measures import durations
from rlinf_async.lab.report.run_view import Subject
from rlinf_async.observe.read_files import finite


def remark(subject: Subject) -> str:
    """Return a sentence on the number of shards that a run has chosen after its first step; "" if none."""
    fit = _fit(subject.run.facts.get("shard_fit"))
    if fit is None:
        return ""
    words = f"{subject.label}: after the first step, {fit}."
    spans = subject.run.spans
    steps, answers = durations(spans, "step"), durations(spans, "ask")
    if not steps or not answers:
        return words
    decision_s = sum(steps) / len(steps) + sum(answers) / len(answers)
    # A decision of a joined shard is one of each of its members, so that as many are made in each round.
    was = fit.decision_s / decision_s
    took = f"a decision of a shard took {decision_s * 1000:.0f} ms from then on, with its waits"
    return f"{words} It was {was:.2f} times: {took}." if fit.shards != fit.before else words


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
