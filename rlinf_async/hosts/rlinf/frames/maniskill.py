"""Frames of RLinf's ManiSkill: cameras are rendered only when their images are read.

Images are still rendered if a task's reward reads the observation. Only images are left out: states, and the
random numbers that a task draws for them, are computed at every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from rlinf_async.hosts.rlinf.frames import LastFrames, subclass_of

RASTERISED_SHADERS = frozenset({"minimal", "default"})
"""ManiSkill's shaders that use one frame; ray tracing may accumulate several."""


def adapt(env_cls: type) -> type | None:
    """Return a subclass of `env_cls` with `draw_last_only`; None if it lacks a method that is needed."""
    return subclass_of(env_cls, ManiskillFrames, needs=("step", "_wrap_obs"))


class ManiskillFrames(LastFrames):
    """Returns the previous images for a step if its own images were not read."""

    _simulator: Any = None
    """The simulator with the replaced `_get_obs_sensor_data`."""
    _pictures: Any = None

    def draw_last_only(self) -> None:
        super().draw_last_only()
        simulator: Any = self.env.unwrapped  # type: ignore[attr-defined]
        self._last_only = depends_on_a_moment(simulator)
        if self._last_only:
            self._simulator = simulator
            simulator._get_obs_sensor_data = partial(self._sense, simulator._get_obs_sensor_data)

    def chunk_step(self, chunk_actions: Any) -> tuple[Any, ...]:
        # RLinf builds a new simulator after an offload to the CPU.
        if self._last_only and self.env.unwrapped is not self._simulator:  # type: ignore[attr-defined]
            self.draw_last_only()
        return super().chunk_step(chunk_actions)

    def step(self, actions: Any = None, auto_reset: bool = True) -> Any:
        self._frames.begin_step()
        return super().step(actions, auto_reset)  # type: ignore[misc]

    def _sense(self, sense: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._frames.drawing or self._pictures is None:
            self._pictures = self._taken(sense, *args, **kwargs)
            return self._pictures
        return UnreadSensors(partial(self._taken, sense, *args, **kwargs))

    def _taken(self, sense: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._frames.count_drawn(self.num_envs)  # type: ignore[attr-defined]
        began_s = time.perf_counter()
        pictures = sense(*args, **kwargs)
        if not self._simulator.gpu_sim_enabled:  # a GPU goes on drawing after the call
            self._frames.count_seconds(time.perf_counter() - began_s)
        return pictures

    def _wrap_obs(self, raw_obs: Any, infos: Any = None) -> Any:
        sensors = raw_obs.get("sensor_data") if isinstance(raw_obs, dict) else None
        if isinstance(sensors, UnreadSensors):
            if sensors.let_go():
                self._frames.count_left_out(self.num_envs)  # type: ignore[attr-defined]
            raw_obs["sensor_data"] = self._pictures
        return super()._wrap_obs(raw_obs, infos)  # type: ignore[misc]


def depends_on_a_moment(simulator: Any) -> bool:
    """Return True if images of `simulator` can be left out without effect on later images or states."""
    sensors = getattr(simulator, "_sensors", None)
    if not isinstance(sensors, dict) or not callable(getattr(simulator, "_get_obs_sensor_data", None)):
        return False
    # On a GPU, rendering hides objects from the cameras by moving them away and back.
    moves = bool(simulator._hidden_objects) and bool(simulator.gpu_sim_enabled)
    shaders = {getattr(getattr(sensor, "config", None), "shader_pack", None) for sensor in sensors.values()}
    return not moves and shaders <= RASTERISED_SHADERS


def _reading(method: Any) -> Any:
    """Return a method of dictionaries that reads the images first."""

    @wraps(method)
    def call(sensors: UnreadSensors, *arguments: Any) -> Any:
        sensors.read()
        return method(sensors, *arguments)

    return call


class UnreadSensors(dict[str, Any]):
    """Images of the present moment, rendered at the first read."""

    def __init__(self, take: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._take: Callable[[], dict[str, Any]] | None = take

    def let_go(self) -> bool:
        """Drop the images, as the moment is over; return True if they were not read."""
        unread, self._take = self._take is not None, None
        return unread

    def read(self) -> None:
        """Render the images, unless they were rendered or dropped."""
        take, self._take = self._take, None
        if take is not None:
            super().update(take())

    __getitem__, __iter__, __len__ = map(_reading, (dict.__getitem__, dict.__iter__, dict.__len__))
    __contains__, __eq__, __repr__ = map(_reading, (dict.__contains__, dict.__eq__, dict.__repr__))
    get, keys, values, items = map(_reading, (dict.get, dict.keys, dict.values, dict.items))
    pop, copy = map(_reading, (dict.pop, dict.copy))
    __hash__ = None
