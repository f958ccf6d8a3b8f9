"""LIBERO's set-up without a terminal: its configuration, assets and OpenGL backend."""

import os
from collections.abc import MutableMapping
from importlib.util import find_spec
from pathlib import Path

import yaml

from rlinf_async.lab.demo.simulators.rendering import installed_backend
from rlinf_async.observe.files import make_directory, write_whole

ASSETS_VARIABLE = "RLINF_ASYNC_LIBERO_ASSETS"
"""Variable with the folder of meshes, textures and scenes, which LIBERO's packages on PyPI lack."""

ASSET_FOLDERS = ("scenes", "textures", "stable_scanned_objects", "turbosquid_objects")


def missing_libero() -> str | None:
    """Return the reason why LIBERO cannot run here, or None."""
    for package in ("libero", "robosuite", "bddl", "mujoco"):
        if find_spec(package) is None:
            return f"the package {package} is not installed (see the `libero` extra)"
    if installed_backend() is None:
        return "neither the EGL nor the OSMesa library is installed"
    return None


def prepare_libero(assets: Path, config_dir: Path, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make `import libero` work without questions, in this process and in those it starts.

    Call it before the first import of LIBERO or robosuite. It writes LIBERO's configuration into
    `config_dir`, links `assets` into the installed package (LIBERO looks only there and in the home folder),
    and chooses an OpenGL backend if none is chosen.

    Raises:
        FileNotFoundError: `assets` is not a folder of LIBERO's assets.
        RuntimeError: a package or an OpenGL library is missing.
    """
    absent = [name for name in ASSET_FOLDERS if not (assets / name).is_dir()]
    if absent:
        raise FileNotFoundError(f"{assets} is no LIBERO asset folder: it lacks {', '.join(absent)}")
    problem = missing_libero()
    if problem is not None:
        raise RuntimeError(f"LIBERO cannot run: {problem}")
    root = _package_root()
    _link(root / "assets", assets.resolve())
    _write_config(config_dir.resolve(), root)
    environ["LIBERO_CONFIG_PATH"] = str(config_dir.resolve())
    environ.setdefault("MUJOCO_GL", installed_backend() or "")
    if environ["MUJOCO_GL"] == "osmesa":
        environ.setdefault("PYOPENGL_PLATFORM", "osmesa")


def _package_root() -> Path:
    # The inner package asks questions at its import, so only the outer package is looked up.
    spec = find_spec("libero")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package libero is not installed (see the `libero` extra)")
    return Path(next(iter(spec.submodule_search_locations))) / "libero"


def _link(link: Path, target: Path) -> None:
    if link.is_symlink():
        if link.resolve() == target:
            return
        link.unlink()
    if not link.exists():  # a real folder is the user's own copy of the assets, and is used unchanged
        link.symlink_to(target, target_is_directory=True)


def _write_config(config_dir: Path, root: Path) -> None:
    make_directory(config_dir, private=False)
    places = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": config_dir / "datasets",
        "assets": root / "assets",
    }
    text = yaml.safe_dump({name: str(path) for name, path in places.items()})
    write_whole(config_dir / "config.yaml", text.encode(), private=False)
