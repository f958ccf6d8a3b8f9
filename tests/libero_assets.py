"""LIBERO's assets, which are beside the repository or where a variable says, and what its tests need."""

import os
from pathlib import Path

import pytest

from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, missing_libero
from rlinf_async.lab.demo.simulators.rendering import installed_backend

ASSETS = Path(os.environ.get(ASSETS_VARIABLE, Path(__file__).parents[2] / "shared" / "libero-assets"))
MISSING = None if ASSETS.is_dir() else f"no LIBERO assets: name their folder in {ASSETS_VARIABLE}"

needs_libero = pytest.mark.skipif(missing_libero() is not None, reason=str(missing_libero()))
needs_assets = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def rendering() -> dict[str, str]:
    """Variables of a process that renders without a screen, and of where the assets are."""
    backend = installed_backend() or ""
    more = {"PYOPENGL_PLATFORM": backend} if backend == "osmesa" else {}
    return {ASSETS_VARIABLE: str(ASSETS), "MUJOCO_GL": backend, **more}
