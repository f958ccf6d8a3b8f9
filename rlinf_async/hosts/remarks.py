"""Remarks on a run that `explain` and `train` both say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rlinf_async.core.config_keys import clipped, misspelt
from rlinf_async.core.shard_choice import USUAL_WORK_S
from rlinf_async.entry_points import PREPARATIONS_GROUP, provided
from rlinf_async.loops.run_settings import RunSettings


def remarks(settings: RunSettings, *, auto_reset: bool, has_values: bool = True) -> Iterator[str]:
    """Yield remarks on settings that the rows of the levels do not mention.

    `has_values` is False for a loss without values and ratios, which nothing could recompute.
    """
    asynchrony = settings.asynchrony
    if asynchrony.deterministic:
        yield (
            "async.deterministic: weights are published only after all rollouts that need the weights before "
            "have ended, which is slower; on a GPU the kernels must be deterministic, too"
        )
    if asynchrony.takes_tasks:
        yield (
            "a free simulator collects for the next place in the batch, tasks that took longest first, and a "
            "batch has as much of every task as in the synchronous loop (async.advanced.balance=tasks)"
        )
    if asynchrony.off_policy and has_values and not asynchrony.recomputes:
        yield "values and advantages are computed by the policies that sampled, and are not recomputed"
    elif asynchrony.off_policy and auto_reset:
        yield "values that bootstrap truncated episodes are the sampling policy's, and are not recomputed"
    if settings.shard_choices:
        shards = settings.plan.shards_per_worker
        yield (
            f"an env worker's Python takes some {USUAL_WORK_S * 1000:.0f} ms for a decision of a shard, so "
            f"that {shards} shards keep up with decisions that take {shards * USUAL_WORK_S:.2g} s or longer; "
            "the first steps measure both, and with shorter decisions the run goes on, after at most two "
            f"changes, with {in_words(sorted(settings.shard_choices, reverse=True))} shards and simulators "
            "built anew (async.advanced.fit_shards)"
        )
    elif asynchrony.advanced.fit_shards is True:
        yield (
            "async.advanced.fit_shards=true has no effect: it needs level 2, a process for each simulator, "
            "and a smaller number of shards that divides the present one"
        )
    if settings.plan.inference_ranks > settings.plan.shards:
        yield (
            f"{settings.plan.inference_ranks} inference ranks share {settings.plan.shards} shards and some "
            f"will idle: take {settings.plan.shards} ranks, or more shards if the simulators can be split"
        )


def in_words(numbers: Sequence[int]) -> str:
    """Return numbers as alternatives: `8, 4 or 2`."""
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last


def own_sections(cfg: Mapping[str, Any], known: Collection[str], *, framework: str) -> Iterator[str]:
    """Yield a note for each section of `cfg` that is the user's own: neither `known` nor of a preparation."""
    brought = provided(PREPARATIONS_GROUP).names
    for name in cfg:
        if name not in known and name not in brought:
            near = misspelt(name, known)
            hint = f"; did you mean {near}?" if near else ""
            own = f"{clipped(str(name))} is a block of this config's own"
            yield f"{own}, which {framework} does not read{hint}"
