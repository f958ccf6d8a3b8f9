"""Where verl-vla, or a package that it needs, is missing, the tests that need it are skipped and say so."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rlinf_async.lab.demo.simulators.libero import missing_libero, prepare_libero
from tests.libero_assets import ASSETS, MISSING

HOW = "see make test-verl-vla in CONTRIBUTING.md"


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
    return without_verl_vla() or missing_libero() or MISSING


@pytest.fixture(scope="session")
def libero(tmp_path_factory) -> None:
    """LIBERO can be imported, without questions."""
    prepare_libero(ASSETS, tmp_path_factory.mktemp("libero"))
