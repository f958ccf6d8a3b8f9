"""A plan for a reader: the table, what to set, why, and what is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from rlinf_async.lab.plan.job import Job
from rlinf_async.lab.plan.prediction import Prediction
from rlinf_async.lab.plan.search import MIN_GAIN, SearchResult
from rlinf_async.lab.table import screen
from rlinf_async.lab.virtual.times import Times
from rlinf_async.observe.diagnosis import PART_NAMES

TABLE_HEAD = ("setting", "env\nsteps/s", "range", "over\nnow", "step\ns", "limited by", "lag")


def show(found: SearchResult, console: Console) -> None:
    """The run as it is, the recommended settings, and the others by speed."""
    others = sorted(found.others, key=lambda one: -one.steps_per_s.middle)
    predictions = [found.now, *([found.best] if found.best is not found.now else []), *others]
    console.print(screen(TABLE_HEAD, [_row(one, found.now) for one in predictions], space=1))
    console.print(f"\n{recommendation(found)}", soft_wrap=True, markup=False)


def show_scale(placed: Mapping[int, Sequence[Prediction]], console: Console) -> None:
    """The placements on each number of accelerators; linear is the best on the fewest, times their ratio."""
    best = {gpus: ones[0] for gpus, ones in placed.items() if ones}
    for gpus in placed.keys() - best.keys():
        console.print(f"{gpus} GPUs: no placement divides the environments and the batch", markup=False)
    if not best:
        return
    least = min(best)
    rows = []
    for gpus, ones in placed.items():
        for one in ones:
            linear = one.steps_per_s.middle / best[least].steps_per_s.middle * least / gpus
            rows.append((*_row(one, best[least])[:2], f"{linear:.2f}", *_row(one, best[least])[4:]))
    console.print(
        screen(("placement", "env\nsteps/s", "of\nlinear", "step\ns", "limited by", "lag"), rows, space=1)
    )


def recommendation(found: SearchResult) -> str:
    """Return the overrides to set, and one sentence why."""
    now, best = found.now, found.best
    if best is now:
        what = "nothing that trains the same samples with the same simulators"
        return f"Leave it as it is: {what} gains {MIN_GAIN - 1:.0%}. {_limit(now)}{_tempting(found)}"
    lines = [f"Set, for {best.steps_per_s.middle / now.steps_per_s.middle:.2f} times the speed:"]
    lines += [f"    {override}" for override in best.overrides]
    return "\n".join([*lines, f"{_limit(now)} With these settings: {_limit(best)}{_tempting(found)}"])


def unknowns(job: Job, times: Times, *, calibrated: bool) -> Iterator[str]:
    """Yield the facts that the plan does not know, and what would tell; `calibrated`: by a run, not by
    stated times.
    """
    plan = job.settings.plan
    if job.stepping == "in turn":
        yield (
            "What more shards would give: environments share their worker's process, and are taken to step "
            "one at a time in it. Another async.rollout.shards tells."
        )
    elif job.stepping == "apart" and calibrated and plan.envs_per_shard > 1:
        yield (
            f"How long one environment takes: shards of {plan.envs_per_shard} were seen, and the times of "
            f"one are inferred as if each had a core. A run with async.mode=full async.rollout.shards="
            f"{plan.envs_per_shard * plan.shards_per_worker} tells."
        )
    if calibrated and job.settings.asynchrony.takes_tasks:
        yield (
            "How tasks differ: the shards of this run have played each other's. A run with "
            "async.train.balance=exact tells."
        )
    sizes = [size for size, _ in times.policy.by_size]
    if sizes and len(sizes) < 3:
        seen = ", ".join(map(str, sizes))
        yield f"Forward passes of other sizes than {seen} environments: a run with more shards tells."
    if not times.cores:
        yield "How many cores simulators find: enough are assumed; set cores in a file of times."
    if not times.training.micro_batch_s:
        yield "What a micro-batch takes beside its samples: its size is kept; set training.micro_batch_s."
    if calibrated and job.settings.streams:
        yield (
            "What the framework's own training of a whole batch costs beside its passes, as level 3 is on in "
            "this run: settings without it may be slower. A run with async.streamer.enabled=false tells."
        )
    if calibrated:
        yield "What RLinf's own modes cost beside the work: they are given what this run pays for the same."
    yield "Memory: rlinf-async explain says whether a placement fits."


def _row(one: Prediction, now: Prediction) -> tuple[str, ...]:
    rate = one.steps_per_s
    return (
        one.name,
        f"{rate.middle:,.0f}",
        f"{rate.low:,.0f}-{rate.high:,.0f}",
        f"{rate.middle / now.steps_per_s.middle:.2f}",
        f"{one.step_s:.2f}",
        "-"
        if one.limit is None
        else f"{PART_NAMES[one.limit.part].removeprefix('the ')} {one.limit.share:.0%}",
        f"{one.staleness:.0f}",
    )


def _tempting(found: SearchResult) -> str:
    """Return the faster settings that were not recommended, and why not; at most two."""
    tempting = found.tempting[:2]
    if not tempting:
        return ""
    factors = [
        f"{one.name} ({one.steps_per_s.middle / found.now.steps_per_s.middle:.2f} times)" for one in tempting
    ]
    return (
        "\nFaster, and for you to weigh, as it changes which samples are trained or how, or asks more of the "
        f"simulators: {'; '.join(factors)}."
    )


def _limit(one: Prediction) -> str:
    return "" if one.limit is None else one.limit.sentence("it")
