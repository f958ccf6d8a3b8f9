"""Where verl-vla, or a package that it needs, is missing, the tests that need it are skipped and say so."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, missing_libero, prepare_libero

HOW = "see make test-verl-vla in CONTRIBUTING.md"
ASSETS = Path(os.environ.get(ASSETS_VARIABLE, Path(__file__).parents[3] / "shared" / "libero-assets"))


def without_verl_vla() -> str | None:
    """Why verl-vla's classes cannot be imported here, or None."""
    for package in ("verl", "verl_vla"):
        if find_spec(package) is None:
            return f"{package} is not on the path: {HOW}"
    return None


def without_lerobot() -> str | None:
    """The same of its GaussianActor."""
    return without_verl_vla() or (None if find_spec("lerobot") else f"lerobot is not on the path: {HOW}")


def without_libero() -> str | None:
    """The same of its LIBERO."""
    if why := without_verl_vla() or missing_libero():
        return why
    return None if ASSETS.is_dir() else f"no LIBERO assets: name their folder in {ASSETS_VARIABLE}"


@pytest.fixture(scope="session")
def libero(tmp_path_factory) -> None:
    """LIBERO can be imported, without questions."""
    prepare_libero(ASSETS, tmp_path_factory.mktemp("libero"))
