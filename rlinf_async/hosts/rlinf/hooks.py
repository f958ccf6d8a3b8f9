"""The way of the plugin into a driver of RLinf: class-level, reversible, for runs that ask for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from unittest.mock import patch

import ray
from omegaconf import DictConfig

from rlinf_async.hosts.host import make_ready
from rlinf_async.hosts.judge.reasons import refuse
from rlinf_async.hosts.rlinf import borrowed, compat
from rlinf_async.hosts.rlinf.checkpoints import take_place
from rlinf_async.hosts.rlinf.config import (
    asks_for_levels,
    checked,
    config_reasons,
    is_active,
    machines,
    read_fit,
    resolve,
    uses_us,
    write_back,
)
from rlinf_async.hosts.rlinf.models import register_models
from rlinf_async.hosts.rlinf.replacements import check_entry_points, replacement, runner_replacement
from rlinf_async.hosts.rlinf.worker_groups import ENV_WORKERS, hear_worker_groups
from rlinf_async.hosts.rlinf.worker_process import EXT_MODULE, OWN_MODULE, USERS_MODULE, WorkerHooks
from rlinf_async.observe.display import RunDisplay
from rlinf_async.ray_runtime.cluster.starting import starting_ray
from rlinf_async.ray_runtime.driver.revivals import STARTED_AGAIN


def prepare(cfg: DictConfig) -> list[str]:
    """Check a config before Ray starts, and make worker processes load this package if they need it.

    Returns:
        Remarks on the run, for `say_once` when nothing stands in its way any more.

    Raises:
        ValueError: RLinf is not one that we extend, the async block is wrong, or something in the config does
            not go with it; see `config.resolve`.
    """
    notes: list[str] = []
    if cfg.runner.get("only_eval", False) or cfg.runner.get("task_type") != "embodied":
        return notes
    active = asks_for_levels(cfg)
    if active:
        # Here, as worker processes have no use for it.
        from rlinf_async.hosts.rlinf.explain import remarks

        register_models()
        check_entry_points()
        settings = resolve(cfg, beside=config_reasons(checked(cfg), active=is_active(cfg)))
        # Before `write_back`, after which the config has no setting left that would give way.
        notes = [*read_fit(cfg).notes, *remarks(cfg, settings, machines(cfg))]
        write_back(cfg, settings)
    # After every check: it moves aside the files of the run before, which a refused config must not do.
    take_place(cfg, active=active, say=RunDisplay().note)
    if uses_us(cfg):
        # Before Ray starts: worker processes inherit the environment that it starts with.
        load_in_workers(active)
    return notes


def say_once(notes: Iterable[str], cfg: DictConfig) -> None:
    """Print remarks on a run, whose config this process may prepare twice: before Ray, and with RLinf's
    cluster."""
    for note in notes:
        _say_once(note, str(cfg.runner.logger.log_path))


@cache
def _say_once(remark: str, run: str) -> None:
    RunDisplay().note(remark)


def check_presence(cfg: DictConfig) -> None:
    """See that what `cfg` names is here: models, environments, simulators, files, loggers; and that it fits.

    Raises:
        RefusedError: something is not, or does not.
    """
    register_models()
    refuse(config_reasons(checked(cfg), active=is_active(cfg)))


def load_in_workers(active: bool) -> None:
    """Name this package as RLinf's extension module; a module of the user's is loaded, too.

    Our worker classes install the plugin by themselves and leave the user's module in its place. RLinf's own
    classes load only one module: it is ours, which then loads the user's.
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
        """Choose our classes where RLinf's are asked for with an active config.

        RLinf's scripts have imported its classes before any plugin can run, so the choice is made inside
        them: when a worker group is created, a runner is made, or the cluster is started.
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
            # A config of the cluster alone does not tell the run: its classes are chosen when worker groups
            # are created.
            if not isinstance(cluster_cfg, DictConfig) or cluster_cfg._get_root() is cluster_cfg:
                start(cluster, *args, **kwargs)
                return
            cfg: Any = cluster_cfg._get_root()
            self._prepare(cfg)
            with starting_ray(say=RunDisplay().note):
                start(cluster, *args, **kwargs)
            if is_active(cfg):
                # After the start, in which RLinf's `Cluster` takes SIGUSR1 for itself.
                hear_worker_groups()
                compat.fail_unless_cleared()

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
                    self._prepare(cfg)  # of a launcher that started the cluster without a config
                cls = replacement(cls)
            return create_group(cls, *args, **kwargs)

        return choose


PROCESS_HOOKS = Hooks()
"""The hooks of this process, a driver."""


def _restarting(allocate: Callable[..., Any]) -> Callable[..., Any]:
    """Have Ray start workers again that die, if they and their config say so: RLinf's never are.

    Env workers can be started on other nodes, too.
    """

    def start(cluster: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        cfg = _config_of(kwargs.get("cls_args", ()), kwargs.get("cls_kwargs", {}))
        group = getattr(cls, "restart_group", None)
        if group is None or group not in resolve(cfg).restartable:
            return allocate(cluster, cls, *args, **kwargs)
        # RLinf's `WorkerGroup` calls `allocate` by keywords alone; `ENV_WORKERS` keeps them for another node.
        if group == "env":
            return ENV_WORKERS.start(restarting, cluster, cls=cls, **kwargs)
        return restarting(cluster, cls, *args, **kwargs)

    def restarting(cluster: Any, cls: type, *args: Any, **kwargs: Any) -> Any:
        # RLinf calls `ray.remote(cls)` inside: for this one call that is a decorator with our options.
        with patch.object(ray, "remote", ray.remote(**STARTED_AGAIN)):
            return allocate(cluster, cls, *args, **kwargs)

    return start


def _config_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """The config of a run among the arguments of a call: RLinf gives it first, or as `cfg`."""
    return keywords.get("cfg", arguments[0] if arguments else None)


def _choose_runner(cls: type, *args: Any, **kwargs: Any) -> Any:
    if not is_active(_config_of(args, kwargs)):
        # RLinf's runners have no `__new__` of their own, which this would pass over.
        return object.__new__(cls)
    subclass = runner_replacement(cls)
    runner: Any = object.__new__(subclass)
    if not issubclass(subclass, cls):
        runner.__init__(*args, **kwargs)  # Python does so for instances of `cls` only
    return runner


def _new(cls: type, *args: Any, **kwargs: Any) -> Any:
    # Deleting a __new__ does not give a class its old construction back.
    return object.__new__(cls)
