"""`register()`, which RLinf, launchers and worker processes call, and `watch()`, which Hydra calls.

This module imports nothing but the standard library, so that it loads wherever Hydra does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from rlinf_async.entry_points import load_class

CLUSTER = "rlinf.scheduler.cluster.cluster"
"""The module of the class that every RLinf run makes first."""


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
    """Call `register()` when RLinf starts a cluster for a config that asks for this package, and only then.

    RLinf may be imported before Hydra starts, as its scripts do, or at any time later. A run that asks for
    this package and cannot have it ends there, before Ray starts; Hydra itself would only warn, and the
    run would be a synchronous one.
    """
    module = sys.modules.get(CLUSTER)
    if module is not None:
        _guard(module)
    elif not any(isinstance(finder, _ClusterFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _ClusterFinder())


def _guard(module: ModuleType) -> None:
    cluster = module.Cluster
    start = cluster.__init__
    if not hasattr(start, "watched"):
        cluster.__init__ = _watched(cluster, start)


def _watched(cluster: type, start: Callable[..., None]) -> Callable[..., None]:
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        before = cluster.__init__  # type: ignore[misc]
        if _asks_for_us(kwargs.get("cluster_cfg", args[1] if len(args) > 1 else None)):
            _register_or_explain()
        if cluster.__init__ is not before:  # type: ignore[misc]
            cluster.__init__(self, *args, **kwargs)  # type: ignore[misc]  # checks the config, and comes back
        else:
            start(self, *args, **kwargs)

    begin.watched = True  # type: ignore[attr-defined]
    return begin


def _register_or_explain() -> None:
    try:
        register()
    except ImportError as error:
        raise RuntimeError(
            f"the config asks for rlinf-async, which cannot be loaded here: {error}. Fix that "
            "(rlinf-async doctor looks for causes), or take the async block out of the config"
        ) from error


def _asks_for_us(cluster_cfg: Any) -> bool:
    """Whether the config that `cluster_cfg` is a part of names this package, or something that it brings."""
    root = getattr(cluster_cfg, "_get_root", lambda: cluster_cfg)()
    if not hasattr(root, "get"):
        return False
    if root.get("async") is not None or root.get("warm_start") is not None:
        return True
    model = _get(root, "actor", "model", "model_type")
    brought = entry_points(group="rlinf_async.models").names
    return model in brought or any(_get(root, "env", part, "env_class") for part in ("train", "eval"))


def _get(node: Any, *names: str) -> Any:
    for name in names:
        node = node.get(name) if hasattr(node, "get") else None
    return node


class _ClusterFinder(MetaPathFinder):
    """Guards RLinf's cluster as soon as it is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != CLUSTER:
            return None
        sys.meta_path.remove(self)
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
