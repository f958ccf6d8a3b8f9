"""LIBERO's assets, which are beside the repository or where a variable says, and what its tests need."""

import hashlib
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, missing_libero
from rlinf_async.lab.demo.simulators.rendering import installed_backend

ROOT = Path(__file__).parents[1]
GIVEN = Path(os.environ.get(ASSETS_VARIABLE, ROOT.parent / "shared" / "libero-assets"))
MISSING = None if GIVEN.is_dir() else f"no LIBERO assets: name their folder in {ASSETS_VARIABLE}"
FACES = [(0, 2, 1), (1, 2, 3), (4, 5, 6), (5, 7, 6), (0, 1, 4), (1, 5, 4)]
FACES += [(2, 6, 3), (3, 6, 7), (0, 4, 2), (2, 4, 6), (1, 3, 5), (3, 7, 5)]
"""Of a box whose corner i is at the upper end of axis k if bit k of i is set."""


def box_around(mesh: bytes) -> bytes:
    """Return the box around a mesh in MuJoCo's format.

    The format has the numbers of vertices, normals, texture coordinates and faces, and then these.
    """
    (count,) = np.frombuffer(mesh, np.int32, 1)
    vertices = np.frombuffer(mesh, np.float32, 3 * count, offset=16).reshape(-1, 3)
    upper = np.array([[corner >> axis & 1 for axis in range(3)] for corner in range(8)])
    corners = np.where(upper, vertices.max(axis=0), vertices.min(axis=0))
    numbers = np.array([8, 0, 8, len(FACES)], np.int32)
    parts = (numbers, corners.astype(np.float32), upper[:, :2].astype(np.float32), np.array(FACES, np.int32))
    return b"".join(part.tobytes() for part in parts)


def light(assets: Path) -> Path:
    """Return a folder with the same assets, but for what takes most of the time to build and to draw a scene.

    Meshes, which are only seen, are boxes, and nothing mirrors. Tests compare simulators of the same assets.
    """
    newest = max((each.stat().st_mtime_ns for each in assets.rglob("*")), default=0)
    made_by = f"{assets.resolve()} {newest} {Path(__file__).read_text()}"
    folder = ROOT / "build" / f"libero-assets-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"
    made = folder.with_name(f"{folder.name}-{os.getpid()}")
    if folder.is_dir():
        return folder
    for file in (each for each in assets.rglob("*") if each.is_file()):
        content = file.read_bytes()
        if file.suffix == ".msh":
            content = box_around(content)
        elif file.suffix == ".xml":
            content = re.sub(rb'reflectance="[^"]*"', b'reflectance="0"', content)
        target = made / file.relative_to(assets)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    try:
        made.rename(folder)  # another process may have been faster
    except OSError:
        shutil.rmtree(made)
    return folder


ASSETS = GIVEN if MISSING or missing_libero() is not None else light(GIVEN)

needs_libero = pytest.mark.skipif(missing_libero() is not None, reason=str(missing_libero()))
needs_assets = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def rendering() -> dict[str, str]:
    """Variables of a process that renders without a screen, and of where the assets are."""
    backend = installed_backend() or ""
    more = {"PYOPENGL_PLATFORM": backend} if backend == "osmesa" else {}
    return {ASSETS_VARIABLE: str(ASSETS), "MUJOCO_GL": backend, **more}
