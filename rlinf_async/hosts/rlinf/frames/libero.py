"""Frames of RLinf's LIBERO: each call to a simulator, in its own process, says whether to render.

A reset renders 17 frames and uses one: it discards two observations, then makes 15 steps until the scene has
settled.

LIBERO's cameras are robosuite's, which is not imported. A camera is an observable with a clock: it samples
once in a control step, at its last physics step after a reset. `set_enabled` resets that clock, so that the
camera samples at another moment from then on, and shows black until it does. So observables stay enabled
here, sample at their usual moments, and draw their usual random numbers; only their sensors return the
previous image.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from rlinf_async.core.frames import Frames
from rlinf_async.hosts.rlinf.frames import LastFrames, subclass_of

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


IMAGE_MODALITY = "image"
"""robosuite's modality of camera observables: colours, depths and segmentations."""


class StillCameras:
    """The cameras of a robosuite environment."""

    def __init__(self, env: Any) -> None:
        """`env`: a robosuite `MujocoEnv`; for any other object `still` has no effect."""
        self._env, self._still = env, False
        self.drawn_s = 0.0
        """Seconds that these cameras took to draw."""
        if keeps_time(env):
            # Patched on the instance, as every reset replaces observables or their sensors.
            env._update_observables = partial(self._update, env._update_observables)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Have cameras that sample inside this block keep their previous image."""
        self._still = True
        try:
            yield
        finally:
            self._still = False

    def _update(self, update: Callable[..., None], force: bool = False) -> None:
        cameras = [each for each in self._env._observables.values() if each.modality == IMAGE_MODALITY]
        sensors = [camera._sensor for camera in cameras]
        try:
            for camera in cameras:
                camera._sensor = _Old(camera) if self._still else _Timed(camera, self)
            return update(force=force)
        finally:
            for camera, sensor in zip(cameras, sensors, strict=True):
                camera._sensor = sensor


class _Old:
    """A sensor that returns its camera's previous image."""

    def __init__(self, camera: Any) -> None:
        self._camera, self.__modality__ = camera, camera.modality

    def __call__(self, _: object) -> Any:
        return self._camera._current_observed_value


class _Timed:
    """A camera's sensor that counts the seconds of its calls."""

    def __init__(self, camera: Any, cameras: StillCameras) -> None:
        self._sensor, self._cameras, self.__modality__ = camera._sensor, cameras, camera.modality

    def __call__(self, cache: object) -> Any:
        began_s = time.perf_counter()
        try:
            return self._sensor(cache)
        finally:
            self._cameras.drawn_s += time.perf_counter() - began_s


def keeps_time(env: Any) -> bool:
    """Return True if every camera of `env` samples exactly once in each control step.

    Else the image after a step may be of the step before, which must then be rendered, too.
    """
    observables = getattr(env, "_observables", None)
    if not isinstance(observables, dict) or not hasattr(env, "_update_observables"):
        return False
    step_s = float(getattr(env, "control_timestep", math.nan))
    physics_steps = step_s / float(getattr(env, "model_timestep", math.nan))
    cameras = [each for each in observables.values() if each.modality == IMAGE_MODALITY]
    return math.isclose(physics_steps, round(physics_steps) if math.isfinite(physics_steps) else 0) and all(
        math.isclose(camera._sampling_timestep, step_s) and camera.is_enabled() for camera in cameras
    )
