"""The toy task with points of unequal difficulty in one run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlinf_async.hosts.local.envs import EnvFactory, PointReach


class UnequalPoints(PointReach):
    """Points that arrive within a radius of their own."""

    def __init__(self, radii: Sequence[float], *, first: int, group_size: int, seed: int) -> None:
        super().__init__(len(radii), first=first, group_size=group_size, seed=seed)
        self.radius = np.array(radii)  # type: ignore[assignment]


def unequal_points(radii: Sequence[float], *, group_size: int, seed: int) -> EnvFactory:
    """Shards of `UnequalPoints`; `radii`: of each environment of the run."""

    def build(first: int, size: int) -> UnequalPoints:
        return UnequalPoints(radii[first : first + size], first=first, group_size=group_size, seed=seed)

    return build
