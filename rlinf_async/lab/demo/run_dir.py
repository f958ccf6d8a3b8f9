"""The directory of a run, by its config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

RUN_DIR_KEYS = ("runner.logger.log_path", "vla.run_dir")
"""The keys of the hosts for it."""


def run_dir(cfg: Any) -> Path:
    """The run directory that `cfg` names, absolute.

    Raises:
        ValueError: it names none.
    """
    for key in RUN_DIR_KEYS:
        if folder := OmegaConf.select(cfg, key):
            return Path(folder).absolute()
    raise ValueError(f"the config names no run directory: set {' or '.join(RUN_DIR_KEYS)}")
