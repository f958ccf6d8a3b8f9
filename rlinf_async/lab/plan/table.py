"""A plan for a reader: the table, the fastest settings, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from rlinf_async.lab.plan.comparison import MIN_GAIN, Comparison
from rlinf_async.lab.plan.job import Job
from rlinf_async.lab.plan.prediction import Prediction
from rlinf_async.lab.table import screen
from rlinf_async.lab.virtual.times import Times
from rlinf_async.observe.summary import PART_NAMES

TABLE_HEAD = ("setting", "env\nsteps/s", "range", "over\nnow", "step\ns", "limited by", "lag")


def show(found: Comparison, console: Console) -> None:
    """The run as it is, and the others by speed."""
    others = sorted(found.others, key=lambda one: -one.steps_per_s.middle)
    console.print(screen(TABLE_HEAD, [_row(one, found.now) for one in (found.now, *others)], space=1))
    console.print(f"\n{verdict(found)}", soft_wrap=True, markup=False)


def verdict(found: Comparison) -> str:
    """Return the overrides of the fastest, and what limits it."""
    now, fastest = found.now, found.fastest
    limit = now.limit.sentence("it")
    if fastest is now:
        return f"None of these is {MIN_GAIN - 1:.0%} faster than the run as it is. {limit}"
    lines = [f"Fastest of these, {fastest.steps_per_s.middle / now.steps_per_s.middle:.2f} times as fast:"]
    lines += [f"    {override}" for override in fastest.overrides]
    return "\n".join([*lines, f"{limit} With these settings: {fastest.limit.sentence('it')}"])


def unknowns(job: Job, times: Times) -> Iterator[str]:
    """Yield the facts that the plan does not know, and what would tell."""
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
    if sizes and len(sizes) < 3:
        seen = ", ".join(map(str, sizes))
        yield f"Forward passes of other sizes than {seen} environments: a run with more shards tells."
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
