"""The veRL host. Modules that need veRL are imported by the call that needs them."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from rlinf_async.core.config_keys import lookup
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster, PackagedHost, RayCluster
from rlinf_async.hosts.verl.recognition import CONFIG_SECTIONS, is_verls, relative
from rlinf_async.observe.attempt import check_left
from rlinf_async.observe.check import Check


class VerlHost(PackagedHost):
    """Runs the asynchronous loops under veRL. There is nothing to install: our trainer is in veRL's
    registry.
    """

    marks = f"the sections {' and '.join(CONFIG_SECTIONS)}"

    @property
    def available(self) -> bool:
        return find_spec("verl") is not None

    @property
    def installed(self) -> bool:
        return self.available

    def install(self) -> None:
        """Do nothing: veRL loads the plugin itself when it is imported."""

    def remove(self) -> None:
        """Do nothing: the plugin does not affect runs with other trainer modes."""

    def serves(self, cfg: DictConfig) -> bool:
        return is_verls(cfg) and not relative(cfg)

    def recognised(self, cfg: DictConfig) -> str:
        return relative(cfg)

    def ray_cluster(self, cfg: DictConfig) -> RayCluster:
        address = lookup(cfg, "ray_kwargs.ray_init.address")
        # Several nodes are only possible in a cluster that is already running.
        return "own" if not address and lookup(cfg, "trainer.nnodes") in (1, None) else "existing"

    def begin(self) -> AbstractContextManager[None]:
        from rlinf_async.hosts.verl.shared import SHARED
        from rlinf_async.ray_runtime.cluster.template import EARLY

        return EARLY.begun(SHARED) if self.available else super().begin()

    def prepare(self, cfg: DictConfig) -> None:
        from rlinf_async.hosts.host import make_ready
        from rlinf_async.hosts.verl.checkpoint import claim, resume_point
        from rlinf_async.hosts.verl.config import fill_in, runnable_settings
        from rlinf_async.hosts.verl.installation import INSTALL_COMMAND
        from rlinf_async.hosts.verl.trials import validate

        if not self.available:
            raise ValueError(f"this config needs veRL: {INSTALL_COMMAND}")
        settings = runnable_settings(plain(cfg))
        # Before `validate`, which imports veRL, as veRL reads VERL_PLATFORM at its import.
        _choose_device(cfg)
        fill_in(cfg)
        validate(cfg)
        # Before checkpoints are read: another run might be writing or removing one.
        claim(cfg)
        automatic = cfg.trainer.resume_mode == "auto"
        check_left(
            resume_point(cfg)[1], settings.batches, key="trainer.total_training_steps", automatic=automatic
        )
        make_ready(cfg)

    def absent(self, cfg: DictConfig) -> list[str]:
        from rlinf_async.hosts.verl.reasons import presence_reasons
        from rlinf_async.hosts.verl.view import VerlView

        return [reason.text for reason in presence_reasons(VerlView.of(plain(cfg)))]

    def train(self, cfg: DictConfig, *, dashboard: bool = False) -> None:
        from rlinf_async.hosts.verl.checkpoint import resume_point, set_aside
        from rlinf_async.hosts.verl.installation import PLATFORM_VARIABLE
        from rlinf_async.hosts.verl.task_runner import train
        from rlinf_async.observe.display import RunDisplay

        # Before Ray starts, so that a failed start of Ray is recorded in this run's own files.
        set_aside(cfg, goes_on=resume_point(cfg)[0] is not None, say=RunDisplay().note)
        with open_dict(cfg):
            OmegaConf.update(cfg, "ray_kwargs.ray_init.include_dashboard", dashboard)
            if os.environ.get(PLATFORM_VARIABLE):
                # Workers of an existing cluster do not inherit this process's environment.
                key = f"ray_kwargs.ray_init.runtime_env.env_vars.{PLATFORM_VARIABLE}"
                OmegaConf.update(cfg, key, os.environ[PLATFORM_VARIABLE], force_add=True)
        train(cfg)

    def run_dir(self, cfg: DictConfig) -> Path:
        return Path(cfg.vla.run_dir)

    def resolved(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        from rlinf_async.hosts.verl.config import runnable_settings, write_back

        # A copy, as `write_back` changes its argument.
        result = copy.deepcopy(cfg)
        write_back(result, runnable_settings(plain(result)))
        return plain(result)

    def checks(self) -> Sequence[Check]:
        from rlinf_async.hosts.verl.installation import checks

        return checks()

    def versions(self) -> dict[str, str]:
        from rlinf_async.hosts.verl.installation import INSTALL_COMMAND, versions

        if not self.available:
            raise ValueError(f"veRL is not installed: {INSTALL_COMMAND}")
        return versions()


def _choose_device(cfg: DictConfig) -> None:
    """Set `trainer.device=cpu` on a machine without an accelerator, with a note."""
    from rlinf_async.hosts.verl.installation import PLATFORM_VARIABLE, get_ready
    from rlinf_async.observe.display import RunDisplay

    if not get_ready() and os.environ[PLATFORM_VARIABLE] == "cpu" and cfg.trainer.device != "cpu":
        RunDisplay().note(f"trainer.device=cpu instead of {cfg.trainer.device}: there is no accelerator")
        cfg.trainer.device = "cpu"
