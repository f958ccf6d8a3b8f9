"""Cameras of a robosuite environment that can stand still for a while; robosuite is not imported.

A camera is an observable with a clock: it samples once in a control step, at its last physics step after a
reset. `set_enabled` sets that clock back, so that the camera samples elsewhere from then on, and shows black
until it does. So observables stay enabled here, sample when they sampled, and draw what random numbers they
drew; only their sensor returns the old picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

PICTURES = "image"
"""robosuite's modality of what a camera sees: colours, depths and segmentations."""


class StillCameras:
    """The cameras of a robosuite environment."""

    def __init__(self, env: Any) -> None:
        """`env`: a robosuite `MujocoEnv`; of any other nothing ever stands still."""
        self._env, self._still = env, False
        if keeps_time(env):
            # On the instance: its observables get other sensors at every reset, and others replace them.
            env._update_observables = partial(self._update, env._update_observables)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Cameras that sample in this block keep their picture of before."""
        self._still = True
        try:
            yield
        finally:
            self._still = False

    def _update(self, update: Callable[..., None], force: bool = False) -> None:
        if not self._still:
            return update(force=force)
        cameras = [each for each in self._env._observables.values() if each.modality == PICTURES]
        sensors = [camera._sensor for camera in cameras]
        try:
            for camera in cameras:
                camera._sensor = _Old(camera)
            return update(force=force)
        finally:
            for camera, sensor in zip(cameras, sensors, strict=True):
                camera._sensor = sensor


class _Old:
    """A sensor that returns the picture that its camera has."""

    def __init__(self, camera: Any) -> None:
        self._camera, self.__modality__ = camera, camera.modality

    def __call__(self, _: object) -> Any:
        return self._camera._current_observed_value


def keeps_time(env: Any) -> bool:
    """Return True if every camera of `env` samples exactly once in each control step.

    Else the picture after a step may be of the step before, which must then be drawn, too.
    """
    observables = getattr(env, "_observables", None)
    if not isinstance(observables, dict) or not hasattr(env, "_update_observables"):
        return False
    step_s = float(getattr(env, "control_timestep", math.nan))
    physics_steps = step_s / float(getattr(env, "model_timestep", math.nan))
    cameras = [each for each in observables.values() if each.modality == PICTURES]
    return math.isclose(physics_steps, round(physics_steps) if math.isfinite(physics_steps) else 0) and all(
        math.isclose(camera._sampling_timestep, step_s) and camera.is_enabled() for camera in cameras
    )
