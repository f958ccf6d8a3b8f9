"""RLinf's Isaac Lab: one process with all environments, whose `step` takes `render=False` in newer versions.

Written from the sources of Isaac Lab and RLinf, and not run: Isaac Lab needs a GPU that draws.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from rlinf_async.core.frames import Frames
from rlinf_async.hosts.rlinf.frames.libero import Unseen
from rlinf_async.hosts.rlinf.frames.mixin import LastFrames, subclass_of

OF_A_MOMENT = frozenset({"Off", "FXAA"})
"""Isaac Lab's antialiasing modes that look at one picture; the others gather from those before."""

LEFT_OUT = "rlinf_async_left_out"
"""An entry of the information of a step that was not drawn; RLinf does not see it."""


def adapt(env_cls: type) -> type | None:
    """`env_cls`, with `draw_last_only`."""
    return subclass_of(env_cls, IsaacFrames, needs=("_make_env_function", "_init_isaaclab_env", "step"))


class IsaacFrames(LastFrames):
    """Marks the actions after which nobody looks at the pictures."""

    def _make_env_function(self) -> Callable[[], Any]:
        return partial(start, super()._make_env_function())  # type: ignore[misc]

    def _init_isaaclab_env(self) -> None:
        super()._init_isaaclab_env()  # type: ignore[misc]
        simulators: Any = self.env  # type: ignore[attr-defined]
        simulators.step = partial(_step, simulators.step, self._frames, self.num_envs)  # type: ignore[attr-defined]


def _step(step: Callable[[Any], Any], frames: Frames, environments: int, action: Any) -> Any:
    *shown, info = step(action if frames.begin_step() else Unseen(action))
    if info.pop(LEFT_OUT, False):
        frames.count_left_out(environments)
    else:
        frames.count_drawn(environments)
    return (*shown, info)


# -- in the process of the simulators --


def start(build: Callable[[], Any]) -> tuple[Simulators, Any]:
    env, app = build()
    return Simulators(env), app


class Simulators:
    """Isaac Lab's environments; a step whose action is `Unseen` draws nothing, where that is exact."""

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
        return (*shown, {**info, LEFT_OUT: True})


def _draws_moments(env: Any) -> bool:
    """Return True if `env.step` can leave drawing out, and later pictures do not depend on it."""
    render = getattr(getattr(getattr(env, "cfg", None), "sim", None), "render", None)
    return "render" in inspect.signature(env.step).parameters and (
        getattr(render, "antialiasing_mode", None) in OF_A_MOMENT
    )
