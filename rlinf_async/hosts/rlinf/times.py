"""RLinf's tags of what takes how long, which runs have under these names whatever levels are on."""

from __future__ import annotations

from collections.abc import Mapping

STEP_METRIC = "time/step"
SYNC_METRIC = "time/sync_weights"
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
