"""Frames of RLinf's Meta-World: a separate call renders a step, after all simulators have taken it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rlinf_async.core.frames import Frames
from rlinf_async.hosts.rlinf.frames import LastFrames, subclass_of


def adapt(env_cls: type) -> type | None:
    """Return a subclass of `env_cls` with `draw_last_only`; None if it lacks a method that is needed."""
    return subclass_of(env_cls, MetaWorldFrames, needs=("_init_env", "step", "_wrap_obs"))


class MetaWorldFrames(LastFrames):
    """Builds no observation where it is not used."""

    def _init_env(self) -> None:
        super()._init_env()  # type: ignore[misc]
        for simulator in self.env.workers:  # type: ignore[attr-defined]
            simulator.render = LateCamera(simulator.render, self._frames)

    def step(self, actions: Any = None, auto_reset: bool = True) -> Any:
        self._frames.begin_step()
        return super().step(actions, auto_reset)  # type: ignore[misc]

    def _wrap_obs(self, raw: Any) -> Any:
        if self._frames.drawing:
            return super()._wrap_obs(raw)  # type: ignore[misc]
        # Each camera counts a frame that is left out. RLinf would copy the old pictures into an observation.
        self.env.render()  # type: ignore[attr-defined]
        return None


class LateCamera:
    """The `render` of one simulator, which returns the previous image if a new one is not used."""

    def __init__(self, render: Callable[..., Any], frames: Frames) -> None:
        self._render, self._frames = render, frames
        self._picture: Any = None

    def __call__(self, **options: Any) -> Any:
        if self._frames.drawing or self._picture is None:
            self._frames.count_drawn(1)
            began_s = time.perf_counter()
            self._picture = self._render(**options)
            self._frames.count_seconds(time.perf_counter() - began_s)
        else:
            self._frames.count_left_out(1)
        return self._picture
