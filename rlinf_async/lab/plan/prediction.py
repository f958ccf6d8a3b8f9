"""The prediction for one setting: a planned run, measured in a steady state."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlinf_async.lab.table import Range
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.times import Times
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.state import Diagnosis

WARM_UP, STEPS, TAIL = 6, 4, 2
"""Unmeasured batches at the beginning, measured batches, and unmeasured ones at the end, where a run begins
no new rollouts."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one setting, over several draws of all service times."""

    name: str
    overrides: tuple[str, ...]
    """Overrides that make the planned run from this one; empty for the run itself."""
    steps_per_s: Range
    """Fresh environment steps per second: the mean of the draws, the least and the most."""
    step_s: float
    """Seconds per global step."""
    limit: Diagnosis
    """The bound of the run."""
    staleness: float
    """Age of the oldest trained sample, in policy versions."""

    def as_dict(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        rate = self.steps_per_s
        return {
            "name": self.name,
            "overrides": list(self.overrides),
            "env_steps_per_s": rate.middle,
            "range": [rate.low, rate.high],
            "step_s": self.step_s,
            "limit": {"part": self.limit.part, "share": self.limit.share},
            "staleness_max": self.staleness,
        }


def foresee(
    name: str,
    settings: RunSettings,
    times: Times,
    *,
    overrides: Sequence[str] = (),
    draws: int = 2,
    run_dir: Path | None = None,
) -> Prediction:
    """Plan runs of `settings` with `draws` seeds; the first run is written to `run_dir`."""
    settings = replace(settings, batches=WARM_UP + STEPS + TAIL)
    rates: list[float] = []
    seconds: list[float] = []
    reports: list[StepReport] = []
    for seed in range(draws):
        planned = predict(settings, _seeded(times, seed), run_dir=run_dir if seed == 0 else None)
        step_s = (planned.trained_at[WARM_UP + STEPS - 1] - planned.trained_at[WARM_UP - 1]) / STEPS
        seconds.append(step_s)
        rates.append(settings.samples_per_batch * times.decision_steps / step_s)
        reports += planned.reports[WARM_UP : WARM_UP + STEPS]
    return Prediction(
        name=name,
        overrides=tuple(overrides),
        steps_per_s=_range(rates),
        step_s=statistics.fmean(seconds),
        limit=_limit(reports),
        staleness=max(report.staleness.high for report in reports),
    )


def step_after_first(settings: RunSettings, times: Times, *, batches: int, draws: int = 2) -> float:
    """Return the seconds per global step of a run of `batches` batches, without the first, over `draws`
    seeds.
    """
    settings = replace(settings, batches=batches)
    ends = [predict(settings, _seeded(times, seed)).trained_at for seed in range(draws)]
    return statistics.fmean((one[-1] - one[0]) / (batches - 1) for one in ends)


def _seeded(times: Times, seed: int) -> Times:
    return replace(times, simulators=replace(times.simulators, seed=times.simulators.seed + seed))


def _range(rates: Sequence[float]) -> Range:
    return Range(statistics.fmean(rates), min(rates), max(rates))


def _limit(reports: Sequence[StepReport]) -> Diagnosis:
    seconds = sum(report.seconds for report in reports)
    parts = reports[0].busiest
    return Diagnosis.of(
        {part: sum(report.busiest[part] * report.seconds for report in reports) / seconds for part in parts}
    )
