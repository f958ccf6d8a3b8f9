"""LIBERO's assets, where the package lacks them and the user has named a folder for them."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

from rlinf_async.lab.demo.run_dir import run_dir
from rlinf_async.lab.demo.simulators.libero import ASSETS_VARIABLE, prepare_libero


def link_assets(cfg: DictConfig) -> None:
    """Make LIBERO find the assets in the folder that `RLINF_ASYNC_LIBERO_ASSETS` names, if it names one.

    Raises:
        ValueError: they are not there, or LIBERO cannot run here.
    """
    if assets := os.environ.get(ASSETS_VARIABLE):
        try:
            prepare_libero(Path(assets), run_dir(cfg) / "libero")
        except (FileNotFoundError, RuntimeError) as error:
            raise ValueError(f"{ASSETS_VARIABLE}: {error}") from error
