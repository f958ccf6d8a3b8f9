"""Frames that are never used: which steps of the environments are rendered, and how many are not.

A policy sees only the last observation of a decision; the frames of the steps before it serve a video only.
A frame is all images of one environment at one time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rlinf_async.core.frame_counts import FrameCount


class Frames:
    """Decides for each step of the environments whether it is drawn, and counts the frames.

    Outside of the blocks `decision` and `settling` every step is drawn. Inside, only the last step is.
    """

    def __init__(self) -> None:
        self._drawn = self._left_out = 0
        self._drawn_s = 0.0
        self._steps = self._to_come = 0
        self._settling_steps: int | None = None
        self.drawing = True
        """True if the step that began last is drawn."""

    @property
    def count(self) -> FrameCount:
        return FrameCount(self._drawn, self._left_out, self._drawn_s)

    @contextmanager
    def decision(self, steps: int) -> Iterator[None]:
        """The block of a decision of `steps` steps; steps beyond these, as of a reset, are drawn.

        Raises:
            RuntimeError: the block has taken fewer steps, so that its last one was not drawn.
        """
        outside, self._to_come, began = self._to_come, steps, self._steps
        try:
            yield
            if 0 < self._to_come < steps:
                raise RuntimeError(
                    f"the environments have taken {self._steps - began} steps instead of {steps}, so that "
                    "the last was not drawn; async.skip.frames=false draws every step"
                )
        finally:
            self._to_come, self.drawing = outside, True

    @contextmanager
    def settling(self) -> Iterator[None]:
        """The block of a reset that steps until the scene has settled, equally often at each reset.

        The steps of the first reset are all drawn, and counted: their number tells the last step of later
        resets.

        Raises:
            RuntimeError: this reset has taken fewer steps than the one before.
        """
        began = self._steps
        with self.decision(self._settling_steps or 0):
            yield
        self._settling_steps = self._steps - began

    def begin_step(self) -> bool:
        """Begin a step; return True if it is to be drawn."""
        self._steps += 1
        self._to_come = max(0, self._to_come - 1)
        self.drawing = self._to_come == 0
        return self.drawing

    def step(self, environments: int) -> bool:
        """Begin and count a step of that many environments; return True if it is to be drawn."""
        self.begin_step()
        return self._count(environments)

    def moment(self, environments: int) -> bool:
        """Count a frame of each of `environments` outside a step; return True if they are to be drawn."""
        self.drawing = self._to_come == 0
        return self._count(environments)

    def count_drawn(self, environments: int) -> None:
        self._drawn += environments

    def count_left_out(self, environments: int) -> None:
        self._left_out += environments

    def count_seconds(self, seconds: float) -> None:
        """Count seconds that a simulator took to draw."""
        self._drawn_s += seconds

    def _count(self, environments: int) -> bool:
        if self.drawing:
            self.count_drawn(environments)
        else:
            self.count_left_out(environments)
        return self.drawing
