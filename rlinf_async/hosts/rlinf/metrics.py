"""RLinf's metrics: a wrapper that survives failures of its logger, and RLinf's tags for times.

A run logs its times under these tags, whatever levels are on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async.observe.metrics_outlet import MetricsOutlet

STEP_METRIC = "time/step"
SYNC_METRIC = "time/sync_weights"
# RLinf's runner puts `time/` and the worker group before the tags of its `Worker.timer`, so that a tag that
# begins with the group has it twice.
WORK_METRICS = {
    "env": ("time/env/env_interact_step", "time/env/env/bootstrap_step"),
    "inference": ("time/rollout/predict",),
    "learner": ("time/actor/run_training", "time/actor/actor/compute_adv"),
}
"""Tags of times that RLinf's workers report for a step, of the slowest rank; a run need not have all."""


def in_rlinf_words(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the times of a step with overlapping levels, in seconds, under the first tag of each part.

    A step lasts until the next one begins. The time of a part is that of its busiest shard or rank;
    environments' time includes resets, the learner's includes advantages, and the sync's is the time for
    which publication blocks the learner.
    """
    seconds = metrics.get("async/step_seconds")
    if seconds is None:
        return {}
    busiest = {tags[0]: metrics.get(f"async/busiest/{part}") for part, tags in WORK_METRICS.items()}
    parts = {tag: share * seconds for tag, share in busiest.items() if share is not None}
    return {STEP_METRIC: seconds, SYNC_METRIC: metrics.get("async/publication_seconds", 0.0), **parts}


def metrics_outlet(make: Callable[[], Any], say: Callable[[str], None]) -> MetricsOutlet[Any]:
    """Return the outlet that writes to RLinf's `MetricLogger`, which `make` builds."""
    return MetricsOutlet(
        make,
        write=lambda logger, batch, metrics, **keywords: logger.log(metrics, batch, **keywords),
        close=lambda logger: logger.finish(),
        drop=_drop,
        say=say,
    )


def _drop(logger: Any) -> None:
    """Close a failed `MetricLogger`, and leave its finalizer nothing to close."""
    try:
        logger.finish()
    finally:
        # RLinf's `MetricLogger.__del__` calls `finish` again when the object is collected.
        logger._all_loggers = []
