"""The number of shards of an env worker, where a config leaves it open."""

from __future__ import annotations

from collections.abc import Callable

from rlinf_async.core.sharding import Splitting

AUTO_SHARDS = 2
"""Shards per env worker where simulators share its process: one steps while the other is answered."""

MOST_SHARDS = 64
"""Shards per env worker at most, where every simulator has a process of its own."""
USUAL_WORK_S = 0.003
"""Seconds of an env worker's interpreter for a decision of a shard, as measured on two cores in company."""


def choose_shards(
    *,
    asked: int | None,
    simulator: str,
    splitting: Splitting,
    stages: int,
    fits: Callable[[int], bool],
    most: int,
) -> int:
    """Return the shards per env worker: `asked`, or the choice for `shards: auto` (`asked` is None).

    `auto` splits neither a GPU-vectorised simulator nor an unknown one, and keeps a `pipeline_stage_num`
    above 1. Simulators with a process each get as many shards as fit, so that none waits for another;
    simulators that share the process of their worker get two.

    Args:
        simulator: its name, for the message.
        stages: `pipeline_stage_num` of the user's config.
        fits: returns True if a run can be made with this number of shards per worker.
        most: environments (or groups, which are not cut) of an env worker.

    Raises:
        ValueError: a vectorised simulator would be split.
    """
    if asked is not None:
        if splitting == "vectorised" and asked > stages:
            raise ValueError(
                f"async.rollout.shards={asked} would split {simulator}, which vectorises its environments on "
                f"the accelerator; use async.rollout.shards=auto or {stages}"
            )
        return asked
    if splitting in ("vectorised", "unknown") or stages > 1:
        return stages
    target = min(most, MOST_SHARDS) if splitting == "apart" else AUTO_SHARDS
    return next((shards for shards in range(target, 1, -1) if fits(shards)), 1)
