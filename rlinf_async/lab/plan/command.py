"""The command `rlinf-async plan`: calibrate, replay, compare, and show the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from rlinf_async.config.block import MODE_LEVELS
from rlinf_async.lab.outputs import check_replaceable, write_json
from rlinf_async.lab.plan.job import Job, changed
from rlinf_async.lab.plan.prediction import Prediction, foresee
from rlinf_async.lab.plan.replay import Replay, replay
from rlinf_async.lab.table import screen
from rlinf_async.lab.virtual.times import Times
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.state import PART_NAMES

PLAN_FILE, PLAN_MARK = "plan.json", b'{\n  "replay": {'
"""The file of a plan as plain data, and its begin."""
MIN_GAIN = 1.01
"""A setting is called faster from this gain on, as a factor."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The predictions of the run as it is, and of other settings."""

    now: Prediction
    others: tuple[Prediction, ...]
    """The user's settings, then the presets that differ from the run."""

    @property
    def fastest(self) -> Prediction:
        """The fastest prediction; that of the run as it is, if no other gains `MIN_GAIN`."""
        best = max(self.others, key=_rate, default=self.now)
        return best if _rate(best) > MIN_GAIN * _rate(self.now) else self.now


def compare(job: Job, times: Times, *, tries: Iterable[Sequence[str]] = ()) -> Comparison:
    """Plan the run as it is, with each of `tries` (lists of overrides), and in every preset.

    Raises:
        ValueError: one of `tries` cannot be planned.
    """
    requests = [(tuple(overrides), changed(job, overrides)) for overrides in tries]
    others = [
        foresee(_name(overrides), other.settings, times, overrides=overrides)
        for overrides, other in (*requests, *_presets(job))
    ]
    return Comparison(now=foresee("now", job.settings, times), others=tuple(others))


def _presets(job: Job) -> Iterator[tuple[tuple[str, ...], Job]]:
    """Yield the modes other than the run's own, without those that its settings exclude."""
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


TABLE_HEAD = ("setting", "env\nsteps/s", "range", "over\nnow", "step\ns", "limited by", "lag")


def verdict(comparison: Comparison) -> str:
    """Return a sentence with the overrides of the fastest setting and its bottleneck."""
    now, fastest = comparison.now, comparison.fastest
    limit = now.limit.sentence("it")
    if fastest is now:
        return f"None of these is {MIN_GAIN - 1:.0%} faster than the run as it is. {limit}"
    lines = [f"Fastest of these, {fastest.steps_per_s.middle / now.steps_per_s.middle:.2f} times as fast:"]
    lines += [f"    {override}" for override in fastest.overrides]
    return "\n".join([*lines, f"{limit} With these settings: {fastest.limit.sentence('it')}"])


def unknowns(job: Job, times: Times) -> Iterator[str]:
    """Yield sentences on the facts that the plan lacks, and on the records that would supply them."""
    plan = job.settings.plan
    if job.stepping == "in turn":
        yield (
            "What more shards would give: environments share their worker's process, and are taken to step "
            "one at a time in it. Another async.rollout.shards tells."
        )
    elif job.stepping == "apart" and plan.envs_per_shard > 1:
        yield (
            f"How long one environment takes: shards of {plan.envs_per_shard} were seen, and the times of "
            f"one are inferred as if each had a core. A run with async.mode=full async.rollout.shards="
            f"{plan.envs_per_shard * plan.shards_per_worker} tells."
        )
    if job.settings.asynchrony.takes_tasks:
        yield (
            "How tasks differ: the shards of this run have played each other's. A run with "
            "async.advanced.balance=exact tells."
        )
    sizes = [size for size, _ in times.policy.by_size]
    if len(sizes) < 3:
        size_words = ", ".join(map(str, sizes))
        yield f"Forward passes of other sizes than {size_words} environments: a run with more shards tells."
    if not times.cores:
        yield "How many cores simulators find: enough are assumed."
    if job.settings.streams:
        yield (
            "What the framework's own training of a whole batch costs beside its passes, as level 3 is on in "
            "this run: settings without it may be slower. A run with async.streamer.enabled=false tells."
        )
    yield "What RLinf's own loop costs: mode=off is planned as this package's loops, one after another."
    yield "Memory: rlinf-async explain says whether a placement fits."


def _row(one: Prediction, now: Prediction) -> tuple[str, ...]:
    rate = one.steps_per_s
    return (
        one.name,
        f"{rate.middle:,.0f}",
        f"{rate.low:,.0f}-{rate.high:,.0f}",
        f"{rate.middle / now.steps_per_s.middle:.2f}",
        f"{one.step_s:.2f}",
        f"{PART_NAMES[one.limit.part].removeprefix('the ')} {one.limit.share:.0%}",
        f"{one.staleness:.0f}",
    )


HELD_OUT = (
    "Settings planned from the trace of another one, and run afterwards, were off by 10 % on average and "
    "28 % at most where work was emulated (9 % without episodes that end early), by 20 % where simulators "
    "and policy shared two cores (docs/plan.md)."
)
"""The accuracy of earlier plans; the first two numbers are from `benchmarks/schedules/held_out.json`."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of a plan."""

    job: Job
    times: Times
    replayed: Replay
    """The replay of the run that the plan begins with."""
    comparison: Comparison

    @property
    def unknown(self) -> list[str]:
        """The sentences of `unknowns`."""
        return list(unknowns(self.job, self.times))

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        replayed = self.replayed
        return {
            "replay": {
                "measured_step_s": replayed.measured_step_s,
                "planned_step_s": replayed.planned_step_s,
                "error": replayed.error,
                "close": replayed.close,
            },
            "now": self.comparison.now.as_dict(),
            "fastest": self.comparison.fastest.as_dict(),
            "others": [one.as_dict() for one in self.comparison.others],
            "unknown": self.unknown,
        }


def plan_run(path: Path, *, tries: Sequence[str] = ()) -> Plan:
    """Make a plan from the run directory `path`.

    Raises:
        ValueError: there is no run to calibrate from, or one of `tries` cannot be planned.
    """
    replayed = replay(path)
    comparison = compare(replayed.job, replayed.times, tries=[one.split(",") for one in tries])
    return Plan(job=replayed.job, times=replayed.times, replayed=replayed, comparison=comparison)


def show(plan: Plan, console: Console) -> None:
    """Print the plan."""
    replayed = plan.replayed
    console.print(
        f"The run took {replayed.measured_step_s:.2f} s a step; the plan of it "
        f"{replayed.planned_step_s:.2f} s ({replayed.error:+.1%}). {HELD_OUT}",
        soft_wrap=True,
    )
    if replayed.warning is not None:
        console.print("[bold yellow]warning:[/] ", end="")
        console.print(replayed.warning, markup=False, soft_wrap=True)
    now = plan.comparison.now
    others = sorted(plan.comparison.others, key=lambda one: -one.steps_per_s.middle)
    console.print(screen(TABLE_HEAD, [_row(one, now) for one in (now, *others)], space=1))
    console.print(f"\n{verdict(plan.comparison)}", soft_wrap=True, markup=False)
    console.print("\nNot known:")
    for sentence in plan.unknown:
        console.print(f"  {sentence}", markup=False, soft_wrap=True)


def write(plan: Plan, folder: Path, *, say: Callable[[str], None]) -> None:
    """Write the plan as JSON, and a run directory of the fastest settings for `report`, `trace` and `status`.

    The run directory of an earlier plan is moved aside, as that of an earlier run is.
    """
    make_directory(folder)
    check_replaceable(folder / PLAN_FILE, PLAN_MARK)
    write_json(folder / PLAN_FILE, plan.as_dict())
    run = folder / "run"
    RunDir(run).set_aside(say=say)
    settings = changed(plan.job, plan.comparison.fastest.overrides).settings
    foresee("fastest", settings, plan.times, draws=1, run_dir=run)
