"""Frames of RLinf's Isaac Lab: one process has all environments, and its `step` takes `render=False` in newer
versions.

Written from the sources of Isaac Lab and RLinf, and never run: Isaac Lab needs a GPU that can render.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_async.core.frames import Frames
from rlinf_async.hosts.rlinf.frames import LastFrames, subclass_of
from rlinf_async.hosts.rlinf.frames.libero import Unseen

SINGLE_FRAME_MODES = frozenset({"Off", "FXAA"})
"""Isaac Lab's antialiasing modes that use one frame; the others accumulate earlier frames."""

LEFT_OUT_KEY = "rlinf_async_left_out"
"""A key of the `info` of a step that was not rendered; it is removed before RLinf sees it."""


def adapt(env_cls: type) -> type | None:
    """Return a subclass of `env_cls` with `draw_last_only`; None if it lacks a method that is needed."""
    return subclass_of(env_cls, IsaacFrames, needs=("_make_env_function", "_init_isaaclab_env", "step"))


class IsaacFrames(LastFrames):
    """Wraps an action in `Unseen` if its frame is not used."""

    def _make_env_function(self) -> Callable[[], Any]:
        return partial(start, super()._make_env_function())  # type: ignore[misc]

    def _init_isaaclab_env(self) -> None:
        super()._init_isaaclab_env()  # type: ignore[misc]
        simulators: Any = self.env  # type: ignore[attr-defined]
        simulators.step = partial(_step, simulators.step, self._frames, self.num_envs)  # type: ignore[attr-defined]


def _step(step: Callable[[Any], Any], frames: Frames, environments: int, action: Any) -> Any:
    *shown, info = step(action if frames.begin_step() else Unseen(action))
    if info.pop(LEFT_OUT_KEY, False):
        frames.count_left_out(environments)
    else:
        frames.count_drawn(environments)
    return (*shown, info)


# -- in the process of the simulators --


def start(build: Callable[[], Any]) -> tuple[Simulators, Any]:
    env, app = build()
    return Simulators(env), app


class Simulators:
    """Isaac Lab's environments, which do not render an `Unseen` action's step if later frames stay exact."""

    def __init__(self, env: Any) -> None:
        self._env, self._can_leave_out = env, _draws_moments(env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Any) -> Any:
        if not isinstance(action, Unseen):
            return self._env.step(action)
        if not self._can_leave_out:
            return self._env.step(action.value)
        *shown, info = self._env.step(action.value, render=False)
        return (*shown, {**info, LEFT_OUT_KEY: True})


def _draws_moments(env: Any) -> bool:
    """Return True if `env.step` can skip rendering, and later frames do not depend on skipped ones."""
    render = getattr(getattr(getattr(env, "cfg", None), "sim", None), "render", None)
    return "render" in inspect.signature(env.step).parameters and (
        getattr(render, "antialiasing_mode", None) in SINGLE_FRAME_MODES
    )
