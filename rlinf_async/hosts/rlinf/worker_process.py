"""The plugin in a worker process of RLinf: the CPU platform, models and environments, and the workers' base
class.

Workers do not check configs: the driver does so before Ray starts.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlinf_async.config import BLOCK_KEY, AsyncConfig
from rlinf_async.entry_points import load_class
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.declared_models import register_models
from rlinf_async.hosts.rlinf.extension import USERS_MODULE
from rlinf_async.hosts.rlinf.imports import WORKER_NAME
from rlinf_async.hosts.rlinf.platform import provide_cpu_platform

# RLinf's `env_worker.py` imports `get_env_cls` by name, so it must be replaced in both modules.
ENV_MODULES = ("rlinf.envs", "rlinf.workers.env.env_worker")


class WorkerHooks:
    """Installs and removes the hooks; a second install does nothing.

    A worker process gets a CPU platform if it has no accelerator, the models and environments of entry
    points, and the user's extension module.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.installed = False

    def install(self) -> None:
        """Install the plugin in this process."""
        if not self.installed:
            # Set first: the user's extension module, which `_put_in` loads, may call `register()` itself.
            self.installed = True
            self._put_in()

    def remove(self) -> None:
        """Restore RLinf."""
        self.installed = False
        # In reverse order: an attribute that was replaced twice gets its first value back.
        while self._undo:
            self._undo.pop()()

    def _put_in(self) -> None:
        register_models()
        if WORKER_NAME in os.environ:
            provide_cpu_platform(borrowed.Worker)
            _load_users_module()
        for name in ENV_MODULES:
            module = sys.modules.get(name)
            # A process with neither module builds no environments: an env worker's class comes with its
            # module.
            if module is not None:
                self._replace(module, "get_env_cls", _choosing_env(module.get_env_cls))

    def _replace(self, owner: Any, name: str, value: Any, *, fallback: Any = None) -> None:
        # From `__dict__`: `getattr` would bind a classmethod, which could not be restored as it was.
        before = owner.__dict__.get(name, fallback)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))


WORKER_HOOKS = WorkerHooks()
"""The hooks of this process, if it is a worker of RLinf."""


WRONG_RUNNER = (
    "these workers are rlinf-async's, and the runner that calls them is not: give RLinf's EmbodiedRunner, "
    "or a subclass of rlinf-async's runner, the same config as the workers"
)


class InstallsPlugin:
    """A worker that installs the plugin in its process before RLinf loads the user's extension module."""

    def _load_user_extensions(self) -> None:
        # First: RLinf's own loading only logs errors, and the user's module may need the plugin.
        WORKER_HOOKS.install()
        super()._load_user_extensions()  # type: ignore[misc]


class PluginWorker(InstallsPlugin):
    """The base class of workers that replace RLinf's.

    The config is not in struct mode. In every pass RLinf looks up keys that most configs lack; in struct mode
    OmegaConf raises and catches an error for each, which keeps the frames of all callers, with the
    observations and answers of a pass, alive until the next garbage collection.
    """

    cfg: DictConfig

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)  # type: ignore[call-arg]
        OmegaConf.set_struct(self.cfg, False)  # the process's own copy


def async_config(cfg: DictConfig) -> AsyncConfig:
    """Return the `async` block of a worker's config, which the driver has checked."""
    block: Any = cfg.get(BLOCK_KEY)
    if OmegaConf.is_config(block):
        block = OmegaConf.to_container(block, resolve=True)
    return AsyncConfig.from_mapping(block)


def cuda_device(device: Any) -> torch.device | None:
    """Return RLinf's device of a worker, a number or a device, as torch's; None if it is no CUDA device."""
    # A number alone: without a GPU torch may refuse it.
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return found if found.type == "cuda" and torch.cuda.is_available() else None


def _load_users_module() -> None:
    """Load the user's extension module, as RLinf does."""
    if name := os.environ.get(USERS_MODULE):
        register = getattr(importlib.import_module(name), "register", None)
        if callable(register):
            register()


def _choosing_env(get_env_cls: Callable[..., Any]) -> Callable[..., Any]:
    def choose(env_type: str, env_cfg: Any = None) -> Any:
        name = env_cfg.get("env_class") if env_cfg is not None else None
        return load_class("rlinf_async.envs", name) if name else get_env_cls(env_type, env_cfg)

    return choose
