"""RLinf's metrics: its logger, which a run outlives, and its tags of what takes how long.

Runs have the times under these names whatever levels are on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlinf_async.observe.metrics_outlet import MetricsOutlet

STEP_METRIC = "time/step"
SYNC_METRIC = "time/sync_weights"
# The tags of RLinf's `Worker.timer`, which its runner puts behind `time/` and the group: one that begins with
# its group has it twice.
WORK_METRICS = {
    "env": ("time/env/env_interact_step", "time/env/env/bootstrap_step"),
    "inference": ("time/rollout/predict",),
    "learner": ("time/actor/run_training", "time/actor/actor/compute_adv"),
}
"""Times that RLinf's workers report for a step, the slowest rank of each; a run need not have all."""


def in_rlinf_words(metrics: Mapping[str, float]) -> dict[str, float]:
    """The times of a step in which levels overlap, in seconds, under the first tag of each part.

    A step is as long as until the next one begins. Of shards and ranks the busiest counts; resetting is part
    of an environment's time, advantages are part of the learner's, and syncing is what publication keeps the
    learner for.
    """
    seconds = metrics.get("async/step_seconds")
    if seconds is None:
        return {}
    busiest = {tags[0]: metrics.get(f"async/busiest/{part}") for part, tags in WORK_METRICS.items()}
    parts = {tag: share * seconds for tag, share in busiest.items() if share is not None}
    return {STEP_METRIC: seconds, SYNC_METRIC: metrics.get("async/publication_seconds", 0.0), **parts}


def metrics_outlet(make: Callable[[], Any], say: Callable[[str], None]) -> MetricsOutlet[Any]:
    """Return the outlet that writes to RLinf's `MetricLogger`, which `make` gives."""
    return MetricsOutlet(
        make,
        write=lambda logger, batch, metrics, **keywords: logger.log(metrics, batch, **keywords),
        close=lambda logger: logger.finish(),
        drop=_drop,
        say=say,
    )


def _drop(logger: Any) -> None:
    """Close a `MetricLogger` that has failed; its finalizer finds nothing left to close."""
    try:
        logger.finish()
    finally:
        # RLinf's `MetricLogger.__del__` calls `finish` again, wherever the object is collected.
        logger._all_loggers = []
