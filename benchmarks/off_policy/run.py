"""A run of several turns, which `python -m benchmarks.off_policy` starts.

python -m benchmarks.off_policy.run LOG_PATH [KEY=VALUE ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

import configs
from benchmarks.off_policy.turns import TurningEnvWorker, TurningLearner, TurningRolloutWorker, TurnsRunner
from benchmarks.off_policy.workload import register
from rlinf_async.hosts.rlinf.train import launch
from rlinf_async.hosts.rlinf.worker_process import WORKER_NAME

BASE = Path(configs.__file__).parent / "base" / "cpu.yaml"


def config(log_path: str, overrides: list[str]) -> DictConfig:
    """Return the config of a run: this package's base for CPUs, `config.yaml`, and `overrides`."""
    own = OmegaConf.load(Path(__file__).with_name("config.yaml"))
    changes = OmegaConf.from_dotlist([*overrides, f"runner.logger.log_path={log_path}"])
    merged = OmegaConf.merge(OmegaConf.load(BASE), own, changes)
    assert isinstance(merged, DictConfig)
    return merged


def main() -> None:
    where, log_path, *overrides = sys.argv[1:]
    cfg = config(log_path, overrides)
    if where == "ray":
        register()
        workers = {"actor": TurningLearner, "rollout": TurningRolloutWorker, "env": TurningEnvWorker}
        launch(cfg, TurnsRunner, **workers)
        return
    os.environ.setdefault(WORKER_NAME, "local")  # all workers are in this process
    register()
    from benchmarks.off_policy.local import LocalRun

    run = LocalRun(cfg)
    for number, (mode, frames) in enumerate(cfg.turns):
        run.turn(number, mode, frames)
    os._exit(0)  # threads of RLinf's still wait for items


if __name__ == "__main__":
    main()
