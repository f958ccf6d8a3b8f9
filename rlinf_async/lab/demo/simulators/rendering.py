"""With what this machine can draw pictures without a screen; whether a simulator is installed or not."""

import ctypes.util
import os

GL_BACKENDS = ("egl", "osmesa")


def installed_backend() -> str | None:
    """The OpenGL backend this machine can render with, or None.

    Only the presence of the library is looked at: a broken driver shows when a Camera is built.
    """
    backend = os.environ.get("MUJOCO_GL", "").lower()
    candidates = (backend,) if backend in GL_BACKENDS else GL_BACKENDS
    libraries = {"egl": "EGL", "osmesa": "OSMesa"}
    return next((name for name in candidates if ctypes.util.find_library(libraries[name])), None)
