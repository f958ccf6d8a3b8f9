"""LIBERO's assets, where the package lacks them and the user has named a folder of his own."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import DictConfig

from rlinf_async.demo.run_dir import run_dir
from rlinf_async.demo.simulators.libero import ASSETS_VARIABLE, prepare_libero


def link_assets(cfg: DictConfig) -> None:
    """Make LIBERO find the assets in the folder that `RLINF_ASYNC_LIBERO_ASSETS` names, if it names one."""
    if assets := os.environ.get(ASSETS_VARIABLE):
        prepare_libero(Path(assets), run_dir(cfg) / "libero")
