"""A run that follows its measurements: what a host asks after each step, and what it then applies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async.core.adaptation import Adaptation, Event
from rlinf_async.core.guesses import Limits, Measured
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.meters import StepReport
from rlinf_async.observe.spans import SpanLog


class Adapting:
    """Gives each step to `core.adaptation`, and tells of what comes of it.

    Without `async.adapt` it does nothing. A host calls `after` once for each step, in order, and applies
    the limits that it returns: to the gate, and to the batches of inference.
    """

    def __init__(self, settings: RunSettings, *, say: Callable[[str], None] = lambda text: None) -> None:
        self.enabled = settings.asynchrony.adapt
        self._ranks, self._say = settings.plan.inference_ranks, say
        self._batches, self._traced = settings.asynchrony.rollout.enabled, settings.asynchrony.trace
        self._adaptation = _adaptation(settings)
        self._changes = 0

    def after(
        self,
        report: StepReport,
        *,
        waited: float,
        held_back: Sequence[float],
        spans: SpanLog,
        disturbed: bool = False,
    ) -> Limits | None:
        """Decide after a step; the limits that hold from now on, or None where they are those of before.

        Args:
            waited: Seconds of the step in which the learner had nothing to train on.
            held_back: The share of its time that each shard stood at the gate.
            spans: Of the driver. Leaves the span `adapt` for every change and for what became of it.
            disturbed: Whether something else took time that has nothing to do with the limits: an
                evaluation, a checkpoint, a process that was started anew.
        """
        if not self.enabled or disturbed or not (report.seconds and report.env_steps):
            return None
        event = self._adaptation.step(self._measured(report, waited, held_back))
        if event is None:
            return None
        self._changes += event.verdict != "kept"
        self._say(f"step {report.step}: {sentence(event)}")
        spans.add("adapt", spans.now(), step=report.step, **_facts(event))
        return self._adaptation.limits

    def known(self) -> dict[str, Any] | None:
        """What a run that goes on from a checkpoint has to know, as plain data; None without `adapt`."""
        return self._adaptation.known() if self.enabled else None

    def resume(self, known: dict[str, Any] | None) -> Limits | None:
        """Go on with what `known` has returned; the limits that hold, or None for those of the config."""
        if not self.enabled or known is None:
            return None
        if not self._adaptation.resume(known):
            self._say("async.adapt: begins anew, as the config allows something else than before")
            return None
        self._say(f"async.adapt: goes on with {', '.join(f'{k} {v:g}' for k, v in self._in_force().items())}")
        return self._adaptation.limits

    def as_metrics(self) -> dict[str, float]:
        """What holds, and how many changes there were, under `async/adapt/`; nothing where none are made."""
        if not self.enabled:
            return {}
        metrics = {**self._in_force(), "changes": float(self._changes)}
        return {f"async/adapt/{name}": value for name, value in metrics.items()}

    def _in_force(self) -> dict[str, float]:
        """The limits of what can change, by the names of the config."""
        limits = self._adaptation.limits
        held = {"max_staleness": float(limits.max_staleness)}
        if self._batches:
            held |= {"max_batch_size": float(limits.max_batch_size), "max_wait_ms": limits.max_wait_s * 1000}
        return held

    def closing(self, run_dir: str) -> str | None:
        """What to say at the end of a run of what takes a restart, which the planner reads from its trace."""
        if not self.enabled or not self._traced:
            return None
        return (
            "async.adapt: shards, micro-batches, ranks and levels take a restart; what they would gain is "
            f"predicted from this run by: rlinf-async plan {run_dir}"
        )

    def _measured(self, report: StepReport, waited: float, held_back: Sequence[float]) -> Measured:
        busy, passes = report.busy["inference"].mean, report.batch_size.count
        return Measured(
            seconds=report.seconds,
            env_steps=report.env_steps,
            learner_waits=min(1.0, waited / report.seconds),
            held_back=tuple(held_back),
            inference_busy=busy,
            batch_size=report.batch_size.mean,
            batch_wait_s=report.batch_wait.mean,
            forward_s=busy * report.seconds * self._ranks / passes if passes else 0.0,
        )


def _adaptation(settings: RunSettings) -> Adaptation:
    """From the least bound on staleness up; with the size and the wait that the config gives."""
    asynchrony, plan = settings.asynchrony, settings.plan
    wait = asynchrony.rollout.max_wait
    ceiling = Limits(
        max_staleness=asynchrony.max_staleness,
        max_batch_size=settings.max_batch_size,
        max_wait_s=wait if asynchrony.rollout.max_wait_ms != "auto" else math.inf,
    )
    start = Limits(
        max_staleness=asynchrony.initial_staleness,
        max_batch_size=settings.max_batch_size,
        max_wait_s=wait,
    )
    return Adaptation(
        start,
        ceiling=ceiling,
        least_batch=plan.envs_per_shard,
        decisions=settings.horizon * plan.rollout_epochs,
        batches=asynchrony.rollout.enabled,
    )


def sentence(event: Event) -> str:
    """What has changed, or what became of a change, and why."""
    what = f"async.adapt: {event.knob} {event.before:g} -> {event.after:g}"
    if event.gain is None:
        return f"{what}, as {event.because} (by a guess {event.guess:+.1%})"
    gain = f"throughput {event.gain:+.1%}, standard error {event.error:.1%}"
    return f"{what} is kept: {gain}" if event.verdict == "kept" else f"{what} again: {gain}"


def _facts(event: Event) -> dict[str, str | float]:
    facts = {name: getattr(event, name) for name in ("verdict", "knob", "because")}
    numbers = {name: round(getattr(event, name), 6) for name in ("before", "after", "guess", "error")}
    return {**facts, **numbers} if event.gain is None else {**facts, **numbers, "gain": round(event.gain, 6)}
