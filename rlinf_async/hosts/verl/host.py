"""veRL as a host. What needs veRL is imported by the call that needs it."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster, PackagedHost, RayCluster
from rlinf_async.hosts.verl.installation import (
    INSTALL_COMMAND,
    PLATFORM_VARIABLE,
    checks,
    get_ready,
    versions,
)
from rlinf_async.hosts.verl.recognition import is_verls, relative
from rlinf_async.observe.attempt import check_left
from rlinf_async.observe.check import Check


class VerlHost(PackagedHost):
    """Carries the loops into veRL. There is nothing to install: veRL's registry of trainers knows ours."""

    @property
    def available(self) -> bool:
        return find_spec("verl") is not None

    @property
    def installed(self) -> bool:
        return self.available

    def install(self) -> None:
        """veRL finds the plugin by itself, when it is imported."""

    def remove(self) -> None:
        """A run that does not ask for our trainer mode is as it would be without it."""

    def serves(self, cfg: DictConfig) -> bool:
        return is_verls(cfg) and not relative(cfg)

    def recognised(self, cfg: DictConfig) -> str:
        return relative(cfg)

    def ray_cluster(self, cfg: DictConfig) -> RayCluster:
        address = lookup(cfg, "ray_kwargs.ray_init.address")
        # Further nodes can only be in a cluster that somebody has started.
        return "own" if not address and lookup(cfg, "trainer.nnodes") in (1, None) else "existing"

    def prepare(self, cfg: DictConfig) -> None:
        from rlinf_async.hosts.host import make_ready
        from rlinf_async.hosts.verl.checkpoint import claim, resume_point
        from rlinf_async.hosts.verl.keys import TABLE
        from rlinf_async.hosts.verl.presence import runnable_settings, validate

        if not self.available:
            raise ValueError(f"this config needs veRL: {INSTALL_COMMAND}")
        settings = runnable_settings(plain(cfg))
        # Before `validate`, which imports veRL: VERL_PLATFORM counts at that moment only.
        _choose_device(cfg)
        for key, value in TABLE.nulls(plain(cfg)):
            OmegaConf.update(cfg, key, value)
        validate(cfg)
        # Before a checkpoint is looked for: another run might be about to write or to remove it.
        claim(cfg)
        automatic = cfg.trainer.resume_mode == "auto"
        check_left(
            resume_point(cfg)[1], settings.batches, key="trainer.total_training_steps", automatic=automatic
        )
        make_ready(cfg)

    def train(self, cfg: DictConfig, *, dashboard: bool = False) -> None:
        from rlinf_async.hosts.verl.checkpoint import resume_point, set_aside
        from rlinf_async.hosts.verl.task_runner import train
        from rlinf_async.observe.display import RunDisplay

        # Before Ray starts, so that a run of which it does not has its end in a directory of its own.
        set_aside(cfg, goes_on=resume_point(cfg)[0] is not None, say=RunDisplay().note)
        with open_dict(cfg):
            OmegaConf.update(cfg, "ray_kwargs.ray_init.include_dashboard", dashboard)
            if os.environ.get(PLATFORM_VARIABLE):
                # A cluster that exists already does not have the environment of this process.
                key = f"ray_kwargs.ray_init.runtime_env.env_vars.{PLATFORM_VARIABLE}"
                OmegaConf.update(cfg, key, os.environ[PLATFORM_VARIABLE], force_add=True)
        train(cfg)

    def run_dir(self, cfg: DictConfig) -> Path:
        return Path(cfg.vla.run_dir)

    def resolved(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        from rlinf_async.hosts.verl.config import write_back
        from rlinf_async.hosts.verl.presence import runnable_settings

        # `write_back` changes the config that it is given.
        result = copy.deepcopy(cfg)
        write_back(result, runnable_settings(plain(result)))
        return plain(result)

    def checks(self) -> Sequence[Check]:
        return checks()

    def versions(self) -> dict[str, str]:
        if not self.available:
            raise ValueError(f"veRL is not installed: {INSTALL_COMMAND}")
        return versions()


def _choose_device(cfg: DictConfig) -> None:
    """A run on a machine without an accelerator is one on its CPU, whatever the config says."""
    from rlinf_async.observe.display import RunDisplay

    if not get_ready() and os.environ[PLATFORM_VARIABLE] == "cpu" and cfg.trainer.device != "cpu":
        RunDisplay().note(f"trainer.device=cpu: there is no accelerator, where it was {cfg.trainer.device}")
        cfg.trainer.device = "cpu"
