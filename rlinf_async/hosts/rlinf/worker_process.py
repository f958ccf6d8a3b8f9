"""The plugin in a worker process of RLinf: the CPU platform, models and environments, the user's extension
module, and the workers' base class.

Workers do not check configs: the driver does so before Ray starts.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from rlinf_async.config import BLOCK_KEY, AsyncConfig
from rlinf_async.entry_points import MODELS_GROUP, imported, load_class, provided
from rlinf_async.hosts.cpu_device import CpuDevice
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.imports import WORKER_NAME

EXT_MODULE = "RLINF_EXT_MODULE"
USERS_MODULE = "RLINF_ASYNC_EXT_MODULE"
"""The variable with the user's extension module, while ours is in RLinf's variable."""
OWN_MODULE = "rlinf_async.plugin"


def users_module() -> str:
    """Return the name of the user's extension module; empty without one."""
    name = os.environ.get(EXT_MODULE, "")
    return os.environ.get(USERS_MODULE, "") if name in ("", OWN_MODULE) else name


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


def register_models() -> None:
    """Register every entry point of `rlinf_async.models` as a `model_type` of RLinf. May be called again."""
    for entry in provided(MODELS_GROUP):
        # `force`: else RLinf refuses a name that is registered, and a second call would fail.
        borrowed.register_model(entry.name, DeclaredBuilder(entry), category="embodied", force=True)


class DeclaredBuilder:
    """Imports a model's builder only when RLinf builds the model."""

    def __init__(self, entry: Any) -> None:
        self._entry = entry

    def __call__(self, cfg: Any, torch_dtype: torch.dtype | None) -> torch.nn.Module:
        from rlinf_async.hosts.policy_contract import keeping_defaults  # few processes build a declared model

        with keeping_defaults():
            return imported(self._entry)(cfg, torch_dtype)


class InertStream:
    """A stream on a CPU, where work is complete when its call returns."""

    def synchronize(self) -> None:
        """Do nothing: no work is pending on a CPU."""

    def wait_stream(self, stream: object) -> None:
        """Do nothing: no work is pending on a CPU."""


class CpuPlatform(CpuDevice):
    """The functions of `torch.cuda` that RLinf calls, for a CPU."""

    Stream = InertStream
    Event = InertStream

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def is_initialized(self) -> bool:
        return True

    def current_stream(self, device: object = None) -> InertStream:
        return InertStream()

    def stream(self, stream: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _Default:
    """A data descriptor that provides a value for an attribute that RLinf sets to None.

    RLinf assigns the attribute on the instance before it loads plugins; only a data descriptor of the class
    takes precedence over that.
    """

    def __init__(self, value: object) -> None:
        self._value = value

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._value

    def __set__(self, instance: object, value: object) -> None:
        if value is not None:
            self._value = value


def provide_cpu_platform(worker_class: Any) -> bool:
    """Give `worker_class` (RLinf's `Worker`) a CPU platform if this process has no accelerator."""
    if worker_class.torch_platform is not None:
        return False
    # For every worker again: RLinf's `_env_setup_before_init` has just set None on the class.
    worker_class.torch_platform = _Default(CpuPlatform())
    worker_class.torch_device_type = _Default("cpu")
    return True
