"""Counts of the frames that environments have rendered, and of those that they left out.

A frame is all images of one environment at one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref


@dataclass(frozen=True)
class FrameCount:
    """Frames that environments have rendered (drawn), and frames that they left out."""

    drawn: int = 0
    left_out: int = 0
    drawn_s: float = 0.0
    """Seconds of simulators that drawing took; 0 where environments do not measure it."""

    def __add__(self, other: FrameCount) -> FrameCount:
        return FrameCount(
            self.drawn + other.drawn, self.left_out + other.left_out, self.drawn_s + other.drawn_s
        )

    @property
    def shares(self) -> dict[str, float]:
        """The share of frames that were left out, as `{"frames": share}`; empty if none were counted."""
        frames = self.drawn + self.left_out
        return {"frames": self.left_out / frames} if frames else {}

    def __sub__(self, other: FrameCount) -> FrameCount:
        return FrameCount(
            self.drawn - other.drawn, self.left_out - other.left_out, self.drawn_s - other.drawn_s
        )


def count_of(env: object) -> FrameCount:
    """Return the counts of environments, from their attributes `frames_drawn`, `frames_left_out` and
    `frames_drawn_s`; 0 for those that they lack.
    """
    # The wrapped environment has the counts: wrappers neither draw nor forward attributes.
    env = getattr(env, "unwrapped", env)
    return FrameCount(
        int(getattr(env, "frames_drawn", 0)),
        int(getattr(env, "frames_left_out", 0)),
        float(getattr(env, "frames_drawn_s", 0.0)),
    )


class FrameMeter:
    """Counts the frames between two readings; environments may be replaced in between."""

    def __init__(self) -> None:
        self._last_readings: list[tuple[ReferenceType[Any], FrameCount]] = []
        """Of environments that have counted frames; weak, as replaced environments may hold much memory."""

    def pop(self, envs: Sequence[object]) -> FrameCount:
        """The frames of `envs` since the last call, without those of environments that were replaced."""
        total, readings = FrameCount(), [(env, count_of(env)) for env in envs]
        for env, count in readings:
            before = next((read for other, read in self._last_readings if other() is env), FrameCount())
            total += count - before
        self._last_readings = [(ref(env), count) for env, count in readings if count != FrameCount()]
        return total
