"""The speed of the steps of a run, its trend, and the time that the remaining steps will take."""

from __future__ import annotations

import statistics
from collections import deque
from itertools import zip_longest

from rlinf_async.observe.events import StepReport

WINDOW_STEPS = 20
"""The time left is predicted from the mean duration of this many last steps."""
BASELINE_STEPS = 5
"""The throughput of a step is compared with the mean of this many steps before it."""
STEADY_CHANGE = 0.05
"""Smaller relative changes of throughput show no trend."""
CURVE_POINTS = 12
"""The most points of the curve next to the bar; each is the mean of equally many steps."""


class Pace:
    """Predicts the time of the remaining steps from those so far.

    The first step, which also fills the pipeline, counts only until there is a second one.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._env_steps: deque[int] = deque(maxlen=WINDOW_STEPS)
        self._rates: deque[float] = deque(maxlen=BASELINE_STEPS)
        self._points: list[tuple[float, int]] = []
        """Points of the curve: the sum of the values, and their number."""
        self._steps_a_point = 1
        self.steps = 0
        self.elapsed = 0.0
        """Seconds that the steps have taken."""
        self.trend = 0
        """1 if throughput is above that of the steps before, -1 if it is below, 0 if it is about the same."""

    def add(self, report: StepReport) -> None:
        """Add an ended step."""
        if self.steps == 1:
            for values in (self._seconds, self._env_steps, self._rates):
                values.clear()
        self.steps += 1
        self.trend = self._change(report.env_steps_per_second)
        self._seconds.append(report.seconds)
        self._env_steps.append(report.env_steps)
        self._rates.append(report.env_steps_per_second)
        self.elapsed += report.seconds
        value = report.episode_return if report.success is None else report.success
        if value is not None:
            self._keep(value)

    @property
    def step_s(self) -> float | None:
        """The mean seconds of the last steps; None before the first step."""
        return statistics.fmean(self._seconds) if self._seconds else None

    @property
    def env_steps_per_second(self) -> float:
        """The throughput of the last steps; 0 before the first step."""
        return sum(self._env_steps) / sum(self._seconds) if self._seconds else 0.0

    def left(self, steps: int) -> float | None:
        """Return the predicted seconds of that many more steps; None before the first step."""
        return None if self.step_s is None else self.step_s * steps

    def curve(self) -> list[float]:
        """Return the curve of success, or of the return without success: at most `CURVE_POINTS` means."""
        return [total / count for total, count in self._points]

    def _keep(self, value: float) -> None:
        """Add a value to the last point, or begin a new one; join pairs of points if there are too many."""
        if not self._points or self._points[-1][1] == self._steps_a_point:
            self._points.append((0.0, 0))
        total, count = self._points[-1]
        self._points[-1] = (total + value, count + 1)
        if len(self._points) > CURVE_POINTS:
            pairs = zip_longest(self._points[::2], self._points[1::2], fillvalue=(0.0, 0))
            self._points = [(one[0] + two[0], one[1] + two[1]) for one, two in pairs]
            self._steps_a_point *= 2

    def _change(self, rate: float) -> int:
        before = statistics.fmean(self._rates) if len(self._rates) > 1 else 0.0
        if before == 0.0 or abs(rate / before - 1) <= STEADY_CHANGE:
            return 0
        return 1 if rate > before else -1


def clock(seconds: float | None) -> str:
    """Return a duration as `0:07`, `12:05`, `1:30:00` or `3 d 4 h`; `-` for None."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds(number: float) -> str:
    """Return a duration as `0.8 s`, `63 s`, `12 min` or `2.5 h`."""
    if number < 10:
        return f"{number:.1f} s"
    if number < 600:
        return f"{number:.0f} s"
    return f"{number / 60:.0f} min" if number < 7200 else f"{number / 3600:.1f} h"
