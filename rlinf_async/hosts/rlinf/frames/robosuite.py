"""Skips rendering of a robosuite environment's cameras for a while; robosuite is not imported.

A camera is an observable with a clock: it samples once in a control step, at its last physics step after a
reset. `set_enabled` resets that clock, so that the camera samples at another moment from then on, and shows
black until it does. So observables stay enabled here, sample at their usual moments, and draw their usual
random numbers; only their sensors return the previous image.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

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
