"""A run in other settings, on virtual time: every preset, and what the user asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlinf_async.config.block import MODE_LEVELS
from rlinf_async.lab.plan.job import Job
from rlinf_async.lab.plan.prediction import Prediction, foresee
from rlinf_async.lab.plan.variants import changed
from rlinf_async.lab.virtual.times import Times

MIN_GAIN = 1.01
"""Least gain, as a factor, for which a setting is called faster."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The run as it is, and others."""

    now: Prediction
    others: tuple[Prediction, ...]
    """Those that the user asked for, then the presets that differ from the run."""

    @property
    def fastest(self) -> Prediction:
        """The fastest of them; the run as it is where no other gains `MIN_GAIN`."""
        best = max(self.others, key=_rate, default=self.now)
        return best if _rate(best) > MIN_GAIN * _rate(self.now) else self.now


def compare(job: Job, times: Times, *, tries: Iterable[Sequence[str]] = ()) -> Comparison:
    """Plan the run as it is, in `tries` (overrides each), and in every preset.

    Raises:
        ValueError: one of `tries` cannot be planned.
    """
    asked = [(tuple(overrides), changed(job, overrides)) for overrides in tries]
    others = [
        foresee(_name(overrides), other.settings, times, overrides=overrides)
        for overrides, other in (*asked, *_presets(job))
    ]
    return Comparison(now=foresee("now", job.settings, times), others=tuple(others))


def _presets(job: Job) -> Iterator[tuple[tuple[str, ...], Job]]:
    """Yield the modes that are not the run's own; one that does not go with its settings is left out."""
    for mode in MODE_LEVELS:
        overrides = (f"async.mode={mode}",)
        try:
            other = changed(job, overrides)
        except ValueError:
            continue
        if other.settings != job.settings:
            yield overrides, other


def _rate(one: Prediction) -> float:
    return one.steps_per_s.middle


def _name(overrides: Sequence[str]) -> str:
    return ", ".join(one.removeprefix("async.") for one in overrides)
