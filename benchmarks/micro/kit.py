"""Shared by the measurements: settings, medians over rounds, and CPU time of all processes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from rlinf_async.config import AsyncConfig
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.loops.run_settings import RunSettings


def settings_of(
    plan: ShardPlan,
    *,
    batches: int = 1,
    micro_batch_size: int | None = None,
    max_staleness: int = 1,
    horizon: int = 1,
) -> RunSettings:
    """Return settings with all levels on, `horizon` decisions in a rollout, and one optimizer step in a
    batch.
    """
    return RunSettings(
        asynchrony=AsyncConfig.from_mapping({"mode": "full", "train": {"max_staleness": max_staleness}}),
        plan=plan,
        horizon=horizon,
        batches=batches,
        global_batch_size=plan.total_envs * horizon,
        micro_batch_size=micro_batch_size or plan.total_envs,
        update_epoch=1,
        max_batch_size=plan.total_envs,
        normalizes=False,
        seed=0,
    )


def single_worker_plan(shards: int) -> ShardPlan:
    """Return a plan with `shards` shards of one environment in one env worker, and one rank of each kind."""
    return ShardPlan(
        total_envs=shards, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=shards
    )


def medians(observed: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each number over the rounds."""
    return {name: round(statistics.median(one[name] for one in observed), 3) for name in observed[0]}


@contextmanager
def cpu_seconds(spent: list[float]) -> Iterator[None]:
    """Append to `spent` the CPU seconds of the block, of this process and its descendants (Ray and its
    workers).
    """
    before = _cpu_so_far()
    yield
    after = _cpu_so_far()
    spent.append(sum(seconds - before.get(process, 0.0) for process, seconds in after.items()))


def _cpu_so_far() -> dict[psutil.Process, float]:
    me = psutil.Process()
    times = {process: process.cpu_times() for process in (me, *me.children(recursive=True))}
    return {process: spent.user + spent.system for process, spent in times.items()}
