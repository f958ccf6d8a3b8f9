"""`register()`, which RLinf, launchers and worker processes call, and `watch()`, which Hydra calls.

This module imports nothing but the standard library, so that it loads wherever Hydra does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from inspect import getattr_static
from types import ModuleType
from typing import Any

from rlinf_async.entry_points import load_class

WATCHED = {
    "rlinf.scheduler.cluster.cluster": ("Cluster", "__init__"),
    "rlinf.scheduler.worker.worker": ("Worker", "create_group"),
}
"""Modules of RLinf, and the calls in them by which every run begins and names its worker classes."""


def register() -> None:
    """Install the plugin in this process: the driver, or a worker that loads it by `RLINF_EXT_MODULE`.

    It may be called any number of times. Launchers that do not start Hydra call it before they make RLinf's
    `Cluster`; otherwise the plugin comes by itself.
    """
    load_class("rlinf_async.hosts", "rlinf").install()


def unregister() -> None:
    """Take the plugin out of this process; RLinf runs as it would without it."""
    load_class("rlinf_async.hosts", "rlinf").remove()


def is_registered() -> bool:
    """Whether the plugin is installed in this process."""
    return load_class("rlinf_async.hosts", "rlinf").installed


def watch() -> None:
    """Call `register()` when RLinf is given a config that asks for this package, and only then.

    RLinf may be imported before Hydra starts, as its scripts do, or at any time later. A run that asks for
    this package and cannot have it ends there, before Ray starts; Hydra itself would only warn, and the
    run would be a synchronous one.
    """
    for name in WATCHED:
        if name in sys.modules:
            _guard(sys.modules[name])
    if not any(isinstance(finder, _GuardingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _GuardingFinder())


def _guard(module: ModuleType) -> None:
    name, call = WATCHED[module.__name__]
    owner = getattr(module, name)
    stock = getattr_static(owner, call)
    function = getattr(stock, "__func__", stock)
    if hasattr(function, "watched"):
        return

    def begin(first: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr_static(owner, call)
        if any(map(_asks_for_us, (*args, *kwargs.values()))):
            _register_or_explain()
        now = getattr_static(owner, call)
        if now is before:
            return function(first, *args, **kwargs)
        # The plugin has just put its own call before this one, which comes back here.
        return getattr(now, "__func__", now)(first, *args, **kwargs)

    begin.watched = True  # type: ignore[attr-defined]
    setattr(owner, call, classmethod(begin) if isinstance(stock, classmethod) else begin)


def _register_or_explain() -> None:
    try:
        register()
    except ImportError as error:
        raise RuntimeError(
            f"the config asks for rlinf-async, which cannot be loaded here: {error}. Fix that "
            "(rlinf-async doctor looks for causes), or take the async block out of the config"
        ) from error


def _asks_for_us(argument: Any) -> bool:
    """Whether it is, or is a part of, a config that names this package or something that it brings."""
    if not hasattr(argument, "_get_root"):
        return False
    root = argument._get_root()
    if root.get("async") is not None or root.get("warm_start") is not None:
        return True
    model = _get(root, "actor", "model", "model_type")
    brought = entry_points(group="rlinf_async.models").names
    return model in brought or any(_get(root, "env", part, "env_class") for part in ("train", "eval"))


def _get(node: Any, *names: str) -> Any:
    for name in names:
        node = node.get(name) if hasattr(node, "get") else None
    return node


class _GuardingFinder(MetaPathFinder):
    """Guards what is watched as soon as it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in WATCHED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _GuardingLoader(spec.loader)
        return spec


class _GuardingLoader(Loader):
    """Loads a module as the loader that it stands for, and guards it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _guard(module)
