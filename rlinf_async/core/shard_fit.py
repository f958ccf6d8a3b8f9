"""The number of shards of an env worker, by the times of its first rollouts.

Theory. The shards of an env worker share one Python interpreter, which works a fixed time for a decision of
a shard, whatever its size. With many small shards requests wait for the interpreter; with few large ones the
environments of a shard wait for the slowest of them. `n` shards are `n` customers of one server, the
interpreter, and between two visits each is away for a step of its simulators and an answer. The throughput of
such a closed network (the machine-repairman model) follows from mean value analysis (Reiser and Lavenberg,
1980): with `d` seconds of service, and `z` seconds away,

    r(i) = d (1 + q(i-1)),    x(i) = i / (z + r(i)),    q(i) = x(i) r(i),    q(0) = 0.

It is `n / (z + d)` if the interpreter is mostly idle, and `1 / d` if requests wait for it all the time.

The service `d` is not its CPU time alone: threads wait for the interpreter lock, and for a core that other
processes have. So it is the `d` with which the present number of shards would have the throughput that was
measured, and at least the CPU time.

What a shard of several of the present ones would take is computed from their own steps: decision by decision
the longest of them, up to the end of the longest rollout. Where simulators wait for each other at each step
within a decision, it takes longer than that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from rlinf_async.core.shard_times import ShardTimes, mean

NEAR_BEST = 0.97
"""Numbers of shards with at least this share of the best throughput count as equally good."""
LEAST_GAIN = 1.1
"""The throughput over the present one for which environments are built anew."""
CROWDED = 0.8
"""The busy share of the interpreter from which fewer shards of equal throughput are taken as well."""
HALVINGS = 50
"""Steps of the search for a time of service; each halves its interval."""


@dataclass(frozen=True, kw_only=True)
class ShardFit:
    """The chosen number of shards per env worker, and why; times are means per decision of a shard."""

    shards: int
    before: int
    rates: Mapping[int, float]
    """Expected throughput by number of shards, over that of the present number."""
    step_s: float
    answer_s: float
    work_s: float
    """Seconds of the env worker's interpreter."""
    decision_s: float
    """From one decision to the next."""

    @property
    def gain(self) -> float:
        """The expected throughput of the chosen number over that of the present one."""
        return self.rates[self.shards]

    def facts(self) -> dict[str, Any]:
        """Return the fit as plain data, for the records of the run."""
        return {**asdict(self), "rates": {str(number): rate for number, rate in self.rates.items()}}

    def __str__(self) -> str:
        took = (
            f"a decision of a shard took {self.decision_s * 1000:.0f} ms: {self.step_s * 1000:.0f} of "
            f"simulators, {self.answer_s * 1000:.0f} of the answer, and the rest of the env worker's Python, "
            f"which works {self.work_s * 1000:.1f} ms for each of {self.before} shards"
        )
        if self.shards == self.before:
            return f"{self.before} shards per env worker are kept: {took}"
        return (
            f"{self.shards} shards per env worker follow the {self.before}: {took}; "
            f"{self.gain:.2f} times the decisions are expected"
        )


def throughput(customers: int, *, away_s: float, work_s: float) -> float:
    """Return the visits a second of `customers` to one server; see the theory above.

    Raises:
        ValueError: no customer, or times that are not above 0 together.
    """
    if customers < 1 or min(away_s, work_s) < 0 or away_s + work_s <= 0:
        raise ValueError(f"customers={customers}, away_s={away_s}, work_s={work_s}: too small")
    queue = rate = 0.0
    for number in range(1, customers + 1):
        response_s = work_s * (1.0 + queue)
        rate = number / (away_s + response_s)
        queue = rate * response_s
    return rate


def work_seconds(times: ShardTimes, answer_s: float) -> float:
    """Return the seconds of the interpreter per decision of a shard; see the theory above.

    Args:
        answer_s: seconds of an answer without the waits for this worker's interpreter.
    """
    shards, away_s = len(times.steps), times.step_s + answer_s
    measured = shards / times.decision_s
    least, most = times.cpu_s, max(times.cpu_s, times.decision_s)
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        if throughput(shards, away_s=away_s, work_s=middle) > measured:
            least = middle
        else:
            most = middle
    return least


def rollout_rate(times: ShardTimes, shards: int, answer_s: float) -> float:
    """Return the rollouts a second, of the present size, that `shards` shards would play.

    Args:
        shards: a divisor of the present number.
    """
    together = len(times.steps) // shards
    rollouts = [_joined(times, first, together) for first in range(0, len(times.steps), together)]
    away_s = mean([seconds + answer_s * decisions for seconds, decisions in rollouts])
    work_s = work_seconds(times, answer_s) * mean([decisions for _, decisions in rollouts])
    return together * throughput(shards, away_s=away_s, work_s=work_s)


def _joined(times: ShardTimes, first: int, together: int) -> tuple[float, int]:
    """Return the seconds and the decisions of a rollout of some neighbouring shards as one."""
    members = slice(first, first + together)
    steps = [max(seconds) for seconds in zip_longest(*times.steps[members], fillvalue=0.0)]
    return max(times.resets[members]) + sum(steps), len(steps)


def fit_shards(workers: Sequence[ShardTimes], *, answer_s: float, choices: Sequence[int]) -> ShardFit | None:
    """Return the best number of shards per env worker among `choices` and the present number.

    Of numbers that are about equally good the smallest is taken, which costs the least CPU time. The present
    number stays unless another is better by `LEAST_GAIN`, as a change builds environments anew, or fewer
    shards are no worse and relieve a crowded interpreter, among whose shards steps are measured as too long.

    Returns:
        None if some shards have not played.
    """
    if not workers or not all(times.complete for times in workers):
        return None
    present = len(workers[0].steps)
    numbers = sorted({present, *(choice for choice in choices if present % choice == 0)})
    sums = {number: sum(rollout_rate(times, number, answer_s) for times in workers) for number in numbers}
    rates = {number: rate / sums[present] for number, rate in sums.items()}
    best = next(number for number in numbers if rates[number] >= NEAR_BEST * max(rates.values()))
    works = [work_seconds(times, answer_s) for times in workers]
    crowded = all(
        present * work_s >= CROWDED * times.decision_s for work_s, times in zip(works, workers, strict=True)
    )
    least_gain = 1.0 if crowded and best < present else LEAST_GAIN
    return ShardFit(
        shards=best if rates[best] >= least_gain else present,
        before=present,
        rates=rates,
        step_s=mean([times.step_s for times in workers]),
        answer_s=answer_s,
        work_s=mean(works),
        decision_s=mean([times.decision_s for times in workers]),
    )
