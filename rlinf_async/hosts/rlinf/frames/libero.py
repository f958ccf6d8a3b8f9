"""Frames of RLinf's LIBERO: each call to a simulator, in its own process, says whether to render.

A reset renders 17 frames and uses one: it discards two observations, then makes 15 steps until the scene has
settled.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from rlinf_async.core.frames import Frames
from rlinf_async.hosts.rlinf.frames.mixin import LastFrames, subclass_of
from rlinf_async.hosts.rlinf.frames.robosuite import StillCameras

CHILD_MODULE, CHILD_CLASS = "rlinf.envs.libero.venv", "OffScreenRenderEnv"
"""The module and the name of the class that a simulator's process uses to build the next task."""
SIMULATOR_NUMBERS = count()
"""Numbers of the simulators that a process builds, one after the other."""


def adapt(env_cls: type) -> type | None:
    """Return a subclass of `env_cls` with `draw_last_only`; None if it lacks a method that is needed."""
    return subclass_of(env_cls, LiberoFrames, needs=("get_env_fns", "_init_env", "reset"))


@dataclass(frozen=True)
class Unseen:
    """Marks the argument of a call if the resulting frames are not used."""

    value: Any


@dataclass(frozen=True)
class Drawing:
    """A simulator's report: its number in its process (`of`), and the seconds that it has drawn so far."""

    of: int
    seconds: float


class LiberoFrames(LastFrames):
    """Wraps the arguments of calls to simulators in `Unseen` if the frames are not used."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._drawing: dict[int, Drawing] = {}
        super().__init__(*args, **kwargs)

    def get_env_fns(self) -> list[Callable[[], Any]]:
        return [partial(start, build) for build in super().get_env_fns()]  # type: ignore[misc]

    def _init_env(self) -> None:
        super()._init_env()  # type: ignore[misc]
        vector: Any = self.env  # type: ignore[attr-defined]
        vector.step = partial(_step, vector.step, self._frames)
        vector.reset = partial(_reset, vector.reset, self._frames, len(vector.workers))
        vector.set_init_state = partial(_set_init_state, vector.set_init_state, self._frames)

    def chunk_step(self, chunk_actions: Any) -> tuple[Any, ...]:
        result = super().chunk_step(chunk_actions)
        if self._last_only:
            numbers = range(len(self.env.workers))  # type: ignore[attr-defined]
            self._frames.count_seconds(sum(self._seconds_since(number) for number in numbers))
        return result

    def _seconds_since(self, number: int) -> float:
        """Return the seconds that simulator `number` has drawn since the last call."""
        drawing: Drawing = self.env.workers[number].get_env_attr("drawing")  # type: ignore[attr-defined]
        before = self._drawing.get(number)
        self._drawing[number] = drawing
        return drawing.seconds - (before.seconds if before and before.of == drawing.of else 0.0)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        with self._frames.settling() if self._last_only else nullcontext():
            return super().reset(*args, **kwargs)  # type: ignore[misc]


def _step(step: Callable[..., Any], frames: Frames, action: Any, id: Any = None) -> Any:
    seen = frames.step(len(action))
    return step(action if seen else [Unseen(each) for each in action], id)


def _reset(reset: Callable[..., Any], frames: Frames, size: int, id: Any = None, **kwargs: Any) -> Any:
    # A number stands for one environment, as in RLinf's vector environments.
    seen = frames.moment(size if id is None else len(id) if hasattr(id, "__len__") else 1)
    return reset(id, **kwargs) if seen else reset(id, **kwargs, unseen=True)


def _set_init_state(
    set_state: Callable[..., Any], frames: Frames, init_state: Any = None, id: Any = None, **kwargs: Any
) -> Any:
    seen = frames.moment(len(init_state))
    return set_state(init_state if seen else [Unseen(each) for each in init_state], id, **kwargs)


# -- in the process of a simulator --


def start(build: Callable[[], Any]) -> Simulator:
    """Build this process's simulator, and replace the class for later tasks so that they become `Simulator`s,
    too.
    """
    module = sys.modules[CHILD_MODULE]
    later = getattr(module, CHILD_CLASS)
    setattr(module, CHILD_CLASS, lambda **settings: Simulator(later(**settings)))
    return Simulator(build())


class Simulator:
    """LIBERO's environment around a robosuite environment; `Unseen` arguments keep its cameras still."""

    def __init__(self, env: Any) -> None:
        self._env, self._cameras = env, StillCameras(getattr(env, "env", None))
        self._number = next(SIMULATOR_NUMBERS)

    @property
    def drawing(self) -> Drawing:
        return Drawing(self._number, self._cameras.drawn_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: Any) -> Any:
        return self._call(self._env.step, action)

    def set_init_state(self, state: Any) -> Any:
        return self._call(self._env.set_init_state, state)

    def reset(self, unseen: bool = False, **kwargs: Any) -> Any:
        with self._cameras.still() if unseen else nullcontext():
            return self._env.reset(**kwargs)

    def _call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        if not isinstance(argument, Unseen):
            return function(argument)
        with self._cameras.still():
            return function(argument.value)
