"""Frames that nobody looks at: which of the steps of environments are drawn, and how many are not.

A policy sees the last observation of a decision, and the frames of the steps before it are for nobody but a
video. A frame is all the pictures of one environment at one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class FrameCount:
    """Frames that environments have drawn, and those that they would have drawn and did not."""

    drawn: int = 0
    left_out: int = 0

    def __add__(self, other: FrameCount) -> FrameCount:
        return FrameCount(self.drawn + other.drawn, self.left_out + other.left_out)

    @property
    def shares(self) -> dict[str, float]:
        """The share that was left out, by its name; none where environments have counted nothing."""
        frames = self.drawn + self.left_out
        return {"frames": self.left_out / frames} if frames else {}

    def __sub__(self, other: FrameCount) -> FrameCount:
        return FrameCount(self.drawn - other.drawn, self.left_out - other.left_out)


class Frames:
    """Tells for each step of environments whether it is drawn, and counts.

    Outside of its blocks everything is drawn. Inside of one the last step is drawn, and what comes before it
    is not.
    """

    def __init__(self) -> None:
        self._drawn = self._left_out = 0
        self._steps = self._to_come = 0
        self._settling_steps: int | None = None
        self.drawing = True
        """True if the step that began last is drawn."""

    @property
    def count(self) -> FrameCount:
        return FrameCount(self._drawn, self._left_out)

    @contextmanager
    def decision(self, steps: int) -> Iterator[None]:
        """Enter the block of a decision of `steps` steps, after which what ended may be reset.

        Raises:
            RuntimeError: the block has taken fewer steps, so that its last one was not drawn.
        """
        outside, self._to_come, began = self._to_come, steps, self._steps
        try:
            yield
            if 0 < self._to_come < steps:
                raise RuntimeError(
                    f"the environments have taken {self._steps - began} steps in the place of {steps}, and "
                    "the last has not been drawn; async.skip.frames=false draws every step"
                )
        finally:
            self._to_come, self.drawing = outside, True

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Enter the block of a reset that steps until the scene has settled, always as many times.

        The first one is drawn, and counted: the last step of the later ones is known by it.

        Raises:
            RuntimeError: it has taken fewer steps this time.
        """
        began = self._steps
        with self.decision(self._settling_steps or 0):
            yield
        self._settling_steps = self._steps - began

    def begin_step(self) -> bool:
        """A step begins; True if it is to be drawn."""
        self._steps += 1
        self._to_come = max(0, self._to_come - 1)
        self.drawing = self._to_come == 0
        return self.drawing

    def step(self, environments: int) -> bool:
        """A step of that many environments begins and is counted; True if it is to be drawn."""
        self.begin_step()
        return self._count(environments)

    def moment(self, environments: int) -> bool:
        """That many environments would be drawn without a step; True if they are to be."""
        self.drawing = self._to_come == 0
        return self._count(environments)

    def count_drawn(self, environments: int) -> None:
        self._drawn += environments

    def count_left_out(self, environments: int) -> None:
        self._left_out += environments

    def _count(self, environments: int) -> bool:
        if self.drawing:
            self.count_drawn(environments)
        else:
            self.count_left_out(environments)
        return self.drawing


def count_of(env: object) -> FrameCount:
    """The frames of environments that count them: attributes `frames_drawn` and `frames_left_out`."""
    # What is wrapped counts: wrappers neither draw nor pass attributes on.
    env = getattr(env, "unwrapped", env)
    return FrameCount(int(getattr(env, "frames_drawn", 0)), int(getattr(env, "frames_left_out", 0)))


class FrameMeter:
    """What environments have counted between two readings; some may be replaced by others meanwhile."""

    def __init__(self) -> None:
        self._read: list[tuple[object, FrameCount]] = []

    def pop(self, envs: Sequence[object]) -> FrameCount:
        """The frames of `envs` since the last call. Those that are no longer there are not counted."""
        total, readings = FrameCount(), [(env, count_of(env)) for env in envs]
        for env, count in readings:
            before = next((read for other, read in self._read if other is env), FrameCount())
            total += count - before
        self._read = readings
        return total
