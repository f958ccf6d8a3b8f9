"""Advice on settings, from the numbers of a run."""

from __future__ import annotations

from collections.abc import Sequence

from rlinf_async.lab.report.advice import bounds, waits
from rlinf_async.lab.report.advice.facts import Advice, Facts, Rule

__all__ = ["ADVICE_RULES", "Advice", "Facts", "advise"]

ADVICE_RULES: Sequence[Rule] = (
    waits.overlap_training,
    waits.split_rollouts,
    bounds.more_simulators,
    bounds.more_inference,
    bounds.cheaper_anchor,
    bounds.more_learners,
    waits.stream,
    waits.stop_deferring,
    waits.run_ahead,
    waits.smaller_shards,
    waits.larger_shards,
    waits.shorter_queue,
    bounds.cheaper_publication,
    waits.rarer_evaluation,
    waits.rarer_checkpoints,
    waits.refusals,
    waits.synchronous,
)
"""All rules, the most important first."""


def advise(facts: Facts) -> list[Advice]:
    """Return the advice that follows from the numbers, if any."""
    return [advice for rule in ADVICE_RULES if (advice := rule(facts)) is not None]
