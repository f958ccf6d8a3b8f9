"""Installs the plugin in an RLinf driver, by reversible changes of classes; only runs with a level on use
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from omegaconf import DictConfig

from rlinf_async.hosts.host import make_ready
from rlinf_async.hosts.judge.reasons import refuse
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.checkpoints import take_place
from rlinf_async.hosts.rlinf.config import (
    asks_for_levels,
    is_active,
    machines,
    read_fit,
    resolve,
    uses_us,
    write_back,
    write_shards,
)
from rlinf_async.hosts.rlinf.managers import light_processes
from rlinf_async.hosts.rlinf.presence import check_by_rlinf, checked, config_reasons
from rlinf_async.hosts.rlinf.replacements import check_entry_points, replacement, runner_replacement
from rlinf_async.hosts.rlinf.shared import SHARED
from rlinf_async.hosts.rlinf.worker_groups import ENV_WORKERS, fail_unless_cleared, hear_worker_groups
from rlinf_async.hosts.rlinf.worker_process import (
    EXT_MODULE,
    OWN_MODULE,
    USERS_MODULE,
    WorkerHooks,
    register_models,
)
from rlinf_async.hosts.shard_choices import going_on
from rlinf_async.observe.display import RunDisplay
from rlinf_async.ray_runtime.checkpoints.saved_buffer import saved_plan
from rlinf_async.ray_runtime.cluster.starting import begins_a_cluster, starting_ray
from rlinf_async.ray_runtime.cluster.template import EARLY
from rlinf_async.ray_runtime.driver.revivals import RESTARTABLE_OPTIONS


def prepare(cfg: DictConfig) -> list[str]:
    """Check a config before Ray starts, and make worker processes load this package if they need it.

    Returns:
        Remarks on the run, to be printed by `say_once` after all checks.

    Raises:
        ValueError: this RLinf cannot be extended, the async block is wrong, or another setting does not fit
            it; see `config.resolve`.
    """
    notes: list[str] = []
    if cfg.runner.get("only_eval", False) or cfg.runner.get("task_type") != "embodied":
        return notes
    active = asks_for_levels(cfg)
    if active:
        # Imported here, as worker processes do not need it.
        from rlinf_async.hosts.rlinf.explain import remarks

        register_models()
        check_entry_points()
        settings = resolve(cfg, beside=config_reasons(checked(cfg), active=is_active(cfg)))
        # Before `write_back`, which replaces the settings that the remarks are about.
        notes = [*read_fit(cfg).notes, *remarks(cfg, settings, machines(cfg))]
        write_back(cfg, settings)
        check_by_rlinf(cfg)
    # After every check: it moves aside the files of an earlier run, which must not happen for a refused
    # config.
    take_place(cfg, active=active, say=RunDisplay().note)
    if active and settings.shard_choices and (folder := cfg.runner.get("resume_dir")):
        write_shards(cfg, going_on(settings, saved_plan(Path(folder))))
    if uses_us(cfg):
        # Before Ray starts: worker processes inherit the environment of that moment.
        load_in_workers(active)
    return notes


def say_once(notes: Iterable[str], cfg: DictConfig) -> None:
    """Print each remark once per run, as a process may prepare a config twice: before Ray, and with RLinf's
    cluster.
    """
    for note in notes:
        _say_once(note, str(cfg.runner.logger.log_path))


@cache
def _say_once(remark: str, run: str) -> None:
    RunDisplay().note(remark)


def check_presence(cfg: DictConfig) -> None:
    """Check that the models, environments, simulators, files and loggers that `cfg` names exist, and fit
    together.

    Raises:
        RefusedError: something is missing or does not fit.
    """
    register_models()
    refuse(config_reasons(checked(cfg), active=is_active(cfg)))
    check_by_rlinf(cfg)


def load_in_workers(active: bool) -> None:
    """Set this package as RLinf's extension module, and have the user's module loaded as well.

    Our worker classes install the plugin themselves, so the user's module can stay in RLinf's variable.
    RLinf's own classes load only one module: this sets ours, which then loads the user's.
    """
    present = os.environ.setdefault(EXT_MODULE, OWN_MODULE)
    if present != OWN_MODULE and not active:
        os.environ[USERS_MODULE], os.environ[EXT_MODULE] = present, OWN_MODULE


class Hooks(WorkerHooks):
    """The hooks of a driver."""

    def __init__(self) -> None:
        super().__init__()
        self._prepared = False

    def _put_in(self) -> None:
        """Patch RLinf's classes so that ours are used for an active config.

        RLinf's scripts import its classes before any plugin can run, so the choice is made inside the
        classes: when a worker group is created, a runner is constructed, or the cluster is started.
        """
        worker, cluster, runner = borrowed.Worker, borrowed.Cluster, borrowed.EmbodiedRunner
        self._replace(
            worker, "create_group", classmethod(self._choosing_worker(worker.create_group.__func__))
        )
        self._replace(cluster, "__init__", self._checking_config(cluster.__init__))
        self._replace(cluster, "allocate", _restarting(cluster.allocate))
        self._replace(runner, "__new__", staticmethod(_choose_runner), fallback=staticmethod(_new))
        super()._put_in()

    def remove(self) -> None:
        self._prepared = False
        super().remove()

    def _checking_config(self, start: Callable[..., None]) -> Callable[..., None]:
        def check(cluster: Any, *args: Any, **kwargs: Any) -> None:
            # The second parameter of RLinf's `Cluster`, after the number of nodes (0.3 and main).
            cluster_cfg = kwargs.get("cluster_cfg", args[1] if len(args) > 1 else None)
            # A config with only the cluster's section does not show the run's levels: the classes are chosen
            # when worker groups are created.
            if not isinstance(cluster_cfg, DictConfig) or cluster_cfg._get_root() is cluster_cfg:
                start(cluster, *args, **kwargs)
                return
            cfg: Any = cluster_cfg._get_root()
            with EARLY.ended_unless_taken():
                if is_active(cfg) and begins_a_cluster():
                    EARLY.begin(SHARED)  # it imports while the config is checked
                self._prepare(cfg)
                light = light_processes(type(cluster)) if is_active(cfg) else nullcontext()
                with starting_ray(say=RunDisplay().note, shared=SHARED if is_active(cfg) else None), light:
                    start(cluster, *args, **kwargs)
            if is_active(cfg):
                # After the start, as RLinf's `Cluster` installs its own handler of SIGUSR1.
                hear_worker_groups()
                fail_unless_cleared()

        return check

    def _prepare(self, cfg: DictConfig) -> None:
        notes = prepare(cfg)
        make_ready(cfg)
        say_once(notes, cfg)
        self._prepared = True

    def _choosing_worker(self, create_group: Callable[..., Any]) -> Callable[..., Any]:
        def choose(cls: type, *args: Any, **kwargs: Any) -> Any:
            cfg = _config_of(args, kwargs)
            if is_active(cfg):
                if not self._prepared:
                    self._prepare(cfg)  # for launchers that start the cluster without a config
                cls = replacement(cls)
            return create_group(cls, *args, **kwargs)

        return choose


PROCESS_HOOKS = Hooks()
"""The hooks of this process, if it is a driver."""


def _restarting(allocate: Callable[..., Any]) -> Callable[..., Any]:
    """Have Ray restart dead workers, if their class and their config allow it; RLinf's own workers are never
    restarted.

    Env workers can also be started again on other nodes.
    """

    def start(cluster: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        cfg = _config_of(kwargs.get("cls_args", ()), kwargs.get("cls_kwargs", {}))
        group = getattr(cls, "restart_group", None)
        if group is None or group not in resolve(cfg).restartable:
            return allocate(cluster, cls, *args, **kwargs)
        # RLinf's `WorkerGroup` calls `allocate` with keyword arguments only, which `ENV_WORKERS` keeps for
        # another node.
        if group == "env":
            return ENV_WORKERS.start(restarting, cluster, cls=cls, **kwargs)
        return restarting(cluster, cls, *args, **kwargs)

    def restarting(cluster: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        # `allocate` calls `ray.remote(cls)`: inside this block that is a decorator with our options.
        with patch.object(ray, "remote", ray.remote(**RESTARTABLE_OPTIONS)):
            return allocate(cluster, cls, *args, **kwargs)

    return start


def _config_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Return the run's config in the arguments of a call: RLinf passes it first, or as `cfg`."""
    return keywords.get("cfg", arguments[0] if arguments else None)


def _choose_runner(cls: type, *args: Any, **kwargs: Any) -> Any:
    if not is_active(_config_of(args, kwargs)):
        # RLinf's runners define no `__new__`, so `object.__new__` is right.
        return object.__new__(cls)
    subclass = runner_replacement(cls)
    runner: Any = object.__new__(subclass)
    if not issubclass(subclass, cls):
        runner.__init__(*args, **kwargs)  # Python calls it only for instances of `cls`
    return runner


def _new(cls: type, *args: Any, **kwargs: Any) -> Any:
    # Deleting `__new__` from a class does not restore its earlier construction.
    return object.__new__(cls)
