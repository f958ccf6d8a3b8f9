"""Offscreen rendering of Meta-World simulators, from the viewpoint RLinf trains with."""

import atexit
import threading
from dataclasses import dataclass
from importlib import import_module

import mujoco
import numpy as np

from rlinf_async.lab.demo.simulators.rendering import GL_BACKENDS, installed_backend

CAMERA_NAME = "corner2"
CAMERA_POSITION = (0.75, 0.075, 0.7)

_context_creation = threading.Lock()


@dataclass(frozen=True)
class RenderSettings:
    """A square picture of `size` pixels.

    `backend` is "egl" or "osmesa"; None takes MUJOCO_GL if it names one of them, else the installed
    backend. With EGL, MUJOCO_EGL_DEVICE_ID must be unset or name an existing device: software
    rendering has device 0 alone.
    """

    size: int = 64
    backend: str | None = None

    def __post_init__(self) -> None:
        if not 16 <= self.size <= 1024:
            raise ValueError(f"render size must be between 16 and 1024 pixels, got {self.size}")
        if self.backend not in (None, *GL_BACKENDS):
            raise ValueError(f"render backend must be one of {GL_BACKENDS}, got {self.backend!r}")


def prepare(model: mujoco.MjModel, settings: RenderSettings) -> None:
    """Place the camera in `model`, and turn off shadows and multisampling.

    Without a GPU these two take nine tenths of a frame.
    """
    model.vis.quality.shadowsize = 0
    model.vis.quality.offsamples = 0
    model.vis.global_.offwidth = model.vis.global_.offheight = settings.size
    model.camera(CAMERA_NAME).pos = CAMERA_POSITION


class Camera:
    """One OpenGL context that takes pictures of any simulator with the layout of `model`.

    It belongs to the thread that built it. `close()` frees the context; it may be called twice.
    """

    def __init__(self, model: mujoco.MjModel, settings: RenderSettings) -> None:
        backend = settings.backend or installed_backend()
        if backend is None:
            raise RuntimeError("rendering needs the EGL or the OSMesa library, and neither is installed")
        with _context_creation:  # MuJoCo's EGL display is a global set up by the first context
            self._gl = import_module(f"mujoco.{backend}").GLContext(settings.size, settings.size)
        self._gl.make_current()
        self._model = model
        self._rectangle = mujoco.MjrRect(0, 0, settings.size, settings.size)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._options = mujoco.MjvOption()
        self._perturbation = mujoco.MjvPerturb()
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._view.fixedcamid = model.camera(CAMERA_NAME).id
        self._context: mujoco.MjrContext | None = mujoco.MjrContext(
            model, mujoco.mjtFontScale.mjFONTSCALE_100
        )
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        # MuJoCo shuts EGL down at exit, too; functions that are registered later run earlier.
        atexit.register(self.close)

    def picture(self, data: mujoco.MjData) -> np.ndarray:
        """Return the scene of `data` as uint8 [size, size, 3], top row first."""
        self._gl.make_current()
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._options,
            self._perturbation,
            self._view,
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        pixels = np.empty((self._rectangle.height, self._rectangle.width, 3), dtype=np.uint8)
        mujoco.mjr_render(self._rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, self._rectangle, self._context)
        # OpenGL's first row is the bottom one, and Meta-World's corner camera hangs upside down:
        # the two flips of rows cancel, and only the mirror image has to be undone.
        return pixels[:, ::-1].copy()

    def close(self) -> None:
        if self._context is None:
            return
        atexit.unregister(self.close)
        self._gl.make_current()
        self._context.free()
        self._context = None
        self._gl.free()
