"""How the plugin enters RLinf: class-level, reversible, and only for runs that ask for it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rlinf_async.entry_points import find, load_class
from rlinf_async.hosts.rlinf import SUPPORTED
from rlinf_async.hosts.rlinf.config import read_async, resolve, uses_us, write_back
from rlinf_async.hosts.rlinf.models import register_models
from rlinf_async.hosts.rlinf.platform import provide_cpu_platform
from rlinf_async.hosts.rlinf.warm_start import fill_in
from rlinf_async.simulators.libero import ASSETS_VARIABLE, prepare_libero

EXT_MODULE = "RLINF_EXT_MODULE"
USERS_MODULE = "RLINF_ASYNC_EXT_MODULE"
"""Where the user's extension module is kept while ours has its place."""
OURS = "rlinf_async.plugin"

WORKERS = {
    "rlinf.workers.env.env_worker.EnvWorker": "env",
    "rlinf.workers.rollout.hf.huggingface_worker.MultiStepRolloutWorker": "rollout",
    "rlinf.workers.actor.fsdp_actor_worker.EmbodiedFSDPActor": "actor",
}
"""RLinf's classes, and the entry points of the classes that take their places."""
RUNNER = "rlinf.runners.embodied_runner.EmbodiedRunner"
ENV_MODULES = ("rlinf.envs", "rlinf.workers.env.env_worker")


def replacements() -> dict[str, str]:
    """RLinf's class names, and what runs instead when a level is on."""
    classes = {stock: find("rlinf_async.workers", name).value for stock, name in WORKERS.items()}
    return {**classes, RUNNER: find("rlinf_async.runners", "embodied").value}


def prepare(cfg: DictConfig) -> None:
    """Check a config before Ray starts, and make worker processes load this package if they need it.

    Raises:
        ValueError: the async block or something that it does not go with; see `config.resolve`.
    """
    if cfg.runner.get("only_eval", False) or cfg.runner.get("task_type") != "embodied":
        return
    active = read_async(cfg).active
    if active:
        _check_host_version(version("rlinf"))
        write_back(cfg, resolve(cfg))
    if uses_us(cfg):
        _load_in_workers(active)
    assets = os.environ.get(ASSETS_VARIABLE)
    if assets and cfg.env.train.env_type == "libero":
        prepare_libero(Path(assets), Path(cfg.runner.logger.log_path).absolute() / "libero")


def _check_host_version(found: str) -> None:
    if found != SUPPORTED:
        raise ValueError(
            f"rlinf-async extends the workers of RLinf {SUPPORTED}, but RLinf {found} is installed"
        )


def _load_in_workers(active: bool) -> None:
    """Name this package as RLinf's extension module; a module of the user's is loaded, too.

    Our worker classes install the plugin by themselves and leave his module in its place. RLinf's own
    classes load only one module: it is ours, which then loads his.
    """
    present = os.environ.setdefault(EXT_MODULE, OURS)
    if present != OURS and not active:
        os.environ[USERS_MODULE], os.environ[EXT_MODULE] = present, OURS


def _load_users_module() -> None:
    """What RLinf does with the extension module that the user has named."""
    if name := os.environ.get(USERS_MODULE):
        register = getattr(importlib.import_module(name), "register", None)
        if callable(register):
            register()


def is_active(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether a call was given a config, as its first argument or as `cfg`, that turns a level on."""
    cfg = keywords.get("cfg", arguments[0] if arguments else None)
    return isinstance(cfg, DictConfig) and not cfg.runner.get("only_eval", False) and read_async(cfg).active


class RLinfHost:
    """Installs and removes the hooks; installing twice is installing once."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    @property
    def installed(self) -> bool:
        return bool(self._undo)

    def install(self) -> None:
        """Choose our classes where RLinf's are asked for with an active config.

        RLinf's scripts have imported its classes before any plugin can run, so the choice is made inside
        them: when a worker group is created, a runner is made, or the cluster is started. Worker processes
        get a CPU platform where they have no accelerator, and the models and environments of entry points.
        """
        if self.installed:
            return
        worker = importlib.import_module("rlinf.scheduler.worker.worker").Worker
        cluster = importlib.import_module("rlinf.scheduler.cluster.cluster").Cluster
        runner = importlib.import_module("rlinf.runners.embodied_runner").EmbodiedRunner
        self._replace(worker, "create_group", classmethod(_choosing_worker(worker.create_group.__func__)))
        self._replace(cluster, "__init__", _checking_config(cluster.__init__))
        self._replace(runner, "__new__", staticmethod(_choose_runner), fallback=staticmethod(_new))
        register_models()
        if "WORKER_NAME" in os.environ:
            provide_cpu_platform(worker)
            _load_users_module()
        for name in ENV_MODULES:
            module = sys.modules.get(name)
            if module is not None:
                self._replace(module, "get_env_cls", _choosing_env(module.get_env_cls))

    def remove(self) -> None:
        """Leave RLinf as it was."""
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, value: Any, *, fallback: Any = None) -> None:
        before = owner.__dict__.get(name, fallback)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))


HOST = RLinfHost()
"""The host of this process."""


class InstallsPlugin:
    """A worker that installs the plugin in its process before RLinf loads the user's extension module."""

    def _load_user_extensions(self) -> None:
        HOST.install()
        super()._load_user_extensions()  # type: ignore[misc]


def _choosing_worker(create_group: Callable[..., Any]) -> Callable[..., Any]:
    def choose(cls: type, *args: Any, **kwargs: Any) -> Any:
        name = WORKERS.get(f"{cls.__module__}.{cls.__qualname__}")
        if name is not None and is_active(args, kwargs):
            cls = load_class("rlinf_async.workers", name)
        return create_group(cls, *args, **kwargs)

    return choose


def _choose_runner(cls: type, *args: Any, **kwargs: Any) -> Any:
    if f"{cls.__module__}.{cls.__qualname__}" == RUNNER and is_active(args, kwargs):
        cls = load_class("rlinf_async.runners", "embodied")
    return object.__new__(cls)


def _new(cls: type, *args: Any, **kwargs: Any) -> Any:
    # Deleting a __new__ does not give a class its old construction back.
    return object.__new__(cls)


def _checking_config(start: Callable[..., None]) -> Callable[..., None]:
    def check(self: Any, *args: Any, **kwargs: Any) -> None:
        cluster_cfg = kwargs.get("cluster_cfg", args[1] if len(args) > 1 else None)
        if isinstance(cluster_cfg, DictConfig) and cluster_cfg._get_root() is not cluster_cfg:
            prepare(cluster_cfg._get_root())
            fill_in(cluster_cfg._get_root())
        start(self, *args, **kwargs)

    return check


def _choosing_env(get_env_cls: Callable[..., Any]) -> Callable[..., Any]:
    def choose(env_type: str, env_cfg: Any = None) -> Any:
        name = env_cfg.get("env_class") if env_cfg is not None else None
        return load_class("rlinf_async.envs", name) if name else get_env_cls(env_type, env_cfg)

    return choose
