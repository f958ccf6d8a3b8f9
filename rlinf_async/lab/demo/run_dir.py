"""The directory of a run, by its config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

RUN_DIR_KEYS = ("runner.logger.log_path", "vla.run_dir")
"""The hosts' config keys for the run directory."""


def run_dir(cfg: Any) -> Path:
    """Return the absolute path of the run directory that `cfg` names.

    Raises:
        ValueError: `cfg` names no run directory.
    """
    for key in RUN_DIR_KEYS:
        if folder := OmegaConf.select(cfg, key):
            return Path(folder).absolute()
    raise ValueError(f"the config names no run directory: set {' or '.join(RUN_DIR_KEYS)}")
