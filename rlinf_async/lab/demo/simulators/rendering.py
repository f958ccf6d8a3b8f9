"""The OpenGL backends for rendering without a screen; no simulator is needed to find them."""

import ctypes.util
import os

GL_BACKENDS = ("egl", "osmesa")


def installed_backend() -> str | None:
    """Return the OpenGL backend that this machine can render with, or None.

    Only the presence of the library is checked: a broken driver fails when a Camera is built.
    """
    backend = os.environ.get("MUJOCO_GL", "").lower()
    candidates = (backend,) if backend in GL_BACKENDS else GL_BACKENDS
    libraries = {"egl": "EGL", "osmesa": "OSMesa"}
    return next((name for name in candidates if ctypes.util.find_library(libraries[name])), None)
