"""LIBERO's assets from a folder that the user has named, for packages without them."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

from rlinf_async.hosts.host import simulators_of
from rlinf_async.lab.demo.run_dir import run_dir
from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, prepare_libero


def link_assets(cfg: DictConfig) -> None:
    """Make LIBERO find the assets in the folder of `RLINF_ASYNC_LIBERO_ASSETS`, if the variable is set.

    Raises:
        ValueError: the folder lacks them, or LIBERO cannot run here.
    """
    assets = os.environ.get(ASSETS_VARIABLE)
    if assets and "libero" in simulators_of(cfg):
        try:
            prepare_libero(Path(assets), run_dir(cfg) / "libero")
        except (FileNotFoundError, RuntimeError) as error:
            raise ValueError(f"{ASSETS_VARIABLE}: {error}") from error
