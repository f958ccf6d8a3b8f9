"""The RLinf host. Modules that need RLinf are imported by the call that needs them."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from rlinf_async.core.config_keys import lookup, misspelt
from rlinf_async.extras import RLINF_REMEDY
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.host import THIS_MACHINE, AssumedCluster, PackagedHost, RayCluster, make_ready
from rlinf_async.hosts.judge.reasons import refuse
from rlinf_async.observe.check import Check, skipped

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.worker_process import WorkerHooks

CONFIG_SECTIONS = ("cluster", "runner", "algorithm", "env", "rollout", "actor")
"""Sections of every config of an RLinf run."""
SUPPORTED_TASKS = ("embodied", "embodied_eval")
"""Values of `runner.task_type` that `train` supports; other tasks have their own scripts in RLinf."""


class RLinfHost(PackagedHost):
    """Runs the asynchronous loops in RLinf's workers."""

    marks = f"the sections {', '.join(CONFIG_SECTIONS)}"

    @property
    def available(self) -> bool:
        return find_spec("rlinf") is not None

    @property
    def installed(self) -> bool:
        if not self.available:
            return False
        return _hooks().installed

    def install(self) -> None:
        _hooks().install()

    def remove(self) -> None:
        _hooks().remove()

    def serves(self, cfg: DictConfig) -> bool:
        return all(section in cfg for section in CONFIG_SECTIONS)

    def recognised(self, cfg: DictConfig) -> str:
        missing = [section for section in CONFIG_SECTIONS if section not in cfg]
        near = misspelt(missing[0], [str(name) for name in cfg]) if len(missing) == 1 else None
        if near is None:
            return ""
        return f"the section {near} is none of RLinf's, and {missing[0]} is missing; write {missing[0]}: ..."

    def ray_cluster(self, cfg: DictConfig) -> RayCluster:
        return "own" if lookup(cfg, "cluster.num_nodes") in (1, None) else "existing"

    def begin(self) -> AbstractContextManager[None]:
        from rlinf_async.hosts.rlinf.shared import SHARED
        from rlinf_async.ray_runtime.cluster.template import EARLY

        return EARLY.begun(SHARED) if self.available else super().begin()

    def prepare(self, cfg: DictConfig) -> None:
        from rlinf_async.hosts.rlinf.config import is_active, write_nulls
        from rlinf_async.hosts.rlinf.hooks import check_presence, prepare, say_once
        from rlinf_async.hosts.rlinf.keys import TABLE

        refuse(TABLE.block_reasons(plain(cfg)))
        check_task(cfg)
        if not is_active(cfg):
            check_presence(cfg)  # with a level on, `prepare` reports all faults at once
        notes = prepare(cfg)
        write_nulls(cfg)
        make_ready(cfg)
        say_once(notes, cfg)  # last, so that a refusal is printed without notes

    def train(self, cfg: DictConfig, *, dashboard: bool = False) -> None:
        from rlinf_async.hosts.rlinf.train import train

        train(cfg, dashboard=dashboard)

    def absent(self, cfg: DictConfig) -> list[str]:
        from rlinf_async.hosts.rlinf.presence import presence_reasons
        from rlinf_async.hosts.rlinf.view import RLinfView

        return [reason.text for reason in presence_reasons(RLinfView.of(plain(cfg)))]

    def run_dir(self, cfg: DictConfig) -> Path:
        return Path(cfg.runner.logger.log_path)

    def resolved(self, cfg: DictConfig, cluster: AssumedCluster = THIS_MACHINE) -> dict[str, Any]:
        from rlinf_async.hosts.rlinf.config import is_active, machines, resolve, write_back

        # A copy, as `write_back` changes its argument.
        resolved = copy.deepcopy(cfg)
        if is_active(cfg):
            write_back(resolved, resolve(resolved, cluster=machines(cfg, cluster)))
        return plain(resolved)

    def checks(self) -> Sequence[Check]:
        if not self.available and find_spec("verl"):
            return [skipped("rlinf", "not installed; configs for RLinf need an environment of their own")]
        if not self.available:
            return [Check("rlinf", "warn", "import rlinf finds nothing: its runs need it", RLINF_REMEDY)]
        from rlinf_async.hosts.rlinf.checks import checks

        return checks()

    def versions(self) -> dict[str, str]:
        from rlinf_async.hosts.rlinf.tree import supported_rlinf, versions

        supported_rlinf()
        return versions()


def check_task(cfg: DictConfig) -> None:
    """Check that `train` runs the kind of run that a config describes.

    Raises:
        ValueError: only a script of RLinf's does.
    """
    task = cfg.runner.get("task_type")
    if task not in SUPPORTED_TASKS:
        raise ValueError(
            f"runner.task_type={task!r} is none of {', '.join(SUPPORTED_TASKS)}, which rlinf-async train "
            "runs; set it to one of them, or start RLinf's own script for that task"
        )


def _hooks() -> WorkerHooks:
    """Return the hooks of this process; only those of a driver load the modules that judge configs."""
    from rlinf_async.hosts.rlinf.imports import WORKER_NAME
    from rlinf_async.hosts.rlinf.worker_process import WORKER_HOOKS

    if WORKER_NAME in os.environ:
        return WORKER_HOOKS
    from rlinf_async.hosts.rlinf.hooks import PROCESS_HOOKS

    return PROCESS_HOOKS
