"""A run of several turns, which `python -m benchmarks.off_policy` starts.

python -m benchmarks.off_policy.run LOG_PATH [KEY=VALUE ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

import configs
from benchmarks.off_policy.local import LocalRun
from benchmarks.off_policy.workload import register

BASE = Path(configs.__file__).parent / "base" / "cpu.yaml"


def config(log_path: str, overrides: list[str]) -> DictConfig:
    """Return the config of a run: this package's base for CPUs, `config.yaml`, and `overrides`."""
    own = OmegaConf.load(Path(__file__).with_name("config.yaml"))
    changes = OmegaConf.from_dotlist([*overrides, f"runner.logger.log_path={log_path}"])
    merged = OmegaConf.merge(OmegaConf.load(BASE), own, changes)
    assert isinstance(merged, DictConfig)
    return merged


if __name__ == "__main__":
    cfg = config(sys.argv[1], sys.argv[2:])
    register()
    run = LocalRun(cfg)
    for number, (mode, frames) in enumerate(cfg.turns):
        run.turn(number, mode, frames)
    sys.stdout.flush()
    os._exit(0)  # threads of RLinf's still wait for items
