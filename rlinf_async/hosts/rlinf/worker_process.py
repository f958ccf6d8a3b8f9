"""The plugin in a worker process of RLinf: its platform, its models and environments, its base class.

Nothing here judges a config, which the driver has done before Ray starts.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rlinf_async.entry_points import load_class
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.models import register_models
from rlinf_async.hosts.rlinf.platform import provide_cpu_platform

EXT_MODULE = "RLINF_EXT_MODULE"
USERS_MODULE = "RLINF_ASYNC_EXT_MODULE"
"""The variable that keeps the user's extension module while ours has its place."""
OWN_MODULE = "rlinf_async.plugin"
WORKER_NAME = "WORKER_NAME"
"""The variable that RLinf sets in worker processes only."""

# RLinf's `env_worker.py` imports `get_env_cls` by its name, so that both modules hold it.
ENV_MODULES = ("rlinf.envs", "rlinf.workers.env.env_worker")


class WorkerHooks:
    """Installs and removes the hooks; installing twice is installing once.

    A worker process gets a CPU platform where it has no accelerator, the models and environments of entry
    points, and the user's extension module.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.installed = False

    def install(self) -> None:
        """Put the plugin into this process."""
        if not self.installed:
            # First: the user's extension module, which this loads, may call `register()` itself.
            self.installed = True
            self._put_in()

    def remove(self) -> None:
        """Leave RLinf as it was."""
        self.installed = False
        # The last first: what was replaced twice gets its first value back.
        while self._undo:
            self._undo.pop()()

    def _put_in(self) -> None:
        register_models()
        if WORKER_NAME in os.environ:
            provide_cpu_platform(borrowed.Worker)
            _load_users_module()
        for name in ENV_MODULES:
            module = sys.modules.get(name)
            # Where neither is loaded no environment is built: an env worker's class comes with its module.
            if module is not None:
                self._replace(module, "get_env_cls", _choosing_env(module.get_env_cls))

    def _replace(self, owner: Any, name: str, value: Any, *, fallback: Any = None) -> None:
        # From `__dict__`, and not by `getattr`, which would bind a classmethod: it is put back as it was.
        before = owner.__dict__.get(name, fallback)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))


WORKER_HOOKS = WorkerHooks()
"""The hooks of this process, a worker of RLinf."""


WRONG_RUNNER = (
    "these workers are rlinf-async's, and the runner that calls them is not: give RLinf's EmbodiedRunner, "
    "or a subclass of rlinf-async's runner, the same config as the workers"
)


class InstallsPlugin:
    """A worker that installs the plugin in its process before RLinf loads the user's extension module."""

    def _load_user_extensions(self) -> None:
        # First: RLinf's own loading only logs what goes wrong, and the user's module may count on the plugin.
        WORKER_HOOKS.install()
        super()._load_user_extensions()  # type: ignore[misc]


class PluginWorker(InstallsPlugin):
    """A worker in the place of one of RLinf's, with its config.

    The config is not in struct mode. RLinf asks in every pass for keys that most configs lack; in struct mode
    OmegaConf answers by an error of its own, which it catches, and which keeps the frames of all its callers
    with what they hold (the observations and answers of a pass) until the garbage collector comes by.
    """

    cfg: DictConfig

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)  # type: ignore[call-arg]
        OmegaConf.set_struct(self.cfg, False)  # the process's own copy


def _load_users_module() -> None:
    """Load the extension module that the user has named, as RLinf does."""
    if name := os.environ.get(USERS_MODULE):
        register = getattr(importlib.import_module(name), "register", None)
        if callable(register):
            register()


def _choosing_env(get_env_cls: Callable[..., Any]) -> Callable[..., Any]:
    def choose(env_type: str, env_cfg: Any = None) -> Any:
        name = env_cfg.get("env_class") if env_cfg is not None else None
        return load_class("rlinf_async.envs", name) if name else get_env_cls(env_type, env_cfg)

    return choose
