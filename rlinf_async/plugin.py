"""`register()`, which frameworks, launchers and worker processes call, and `watch()`, which Hydra calls.

A framework that does not look for plugins by itself has a doorway: the calls that begin its runs. Its host
declares the doorway as an entry point of `rlinf_async.doorways`, under the name of the host. It is a module
with `CALLS`, `{module: (class, method)}`, and `asks(argument)`, which returns True if an argument of such a
call belongs to a config that needs this package. This module and every doorway import little more than the
standard library, so that they load wherever Hydra does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from inspect import getattr_static
from types import ModuleType
from typing import Any, NamedTuple, Protocol

from rlinf_async.entry_points import find, imported, load_class, provided

HOSTS, DOORWAYS = "rlinf_async.hosts", "rlinf_async.doorways"


class Doorway(Protocol):
    """The interface of an entry point of `rlinf_async.doorways`."""

    CALLS: Mapping[str, tuple[str, str]]
    asks: Callable[[Any], bool]


def register() -> None:
    """Install the plugin in this process: a driver, or a worker that loads it by RLinf's `RLINF_EXT_MODULE`.

    It may be called any number of times. Launchers that do not start Hydra call it before their framework
    starts; otherwise the plugin installs itself. Without an installed framework it does nothing.
    """
    for host in _hosts():
        host.install()


def unregister() -> None:
    """Remove the plugin from this process; frameworks run as they would without it."""
    for host in _hosts():
        host.remove()


def is_registered() -> bool:
    """Return True if the plugin is installed in this process."""
    return any(host.installed for host in _hosts())


def _hosts() -> list[Any]:
    """The hosts of the installed frameworks that have a doorway."""
    names = sorted(provided(DOORWAYS).names)
    return [host for host in (load_class(HOSTS, name)() for name in names) if host.available]


def watch() -> None:
    """Call `register()` when a framework gets a config that asks for this package, and only then.

    The framework may be imported before Hydra starts, as in RLinf's scripts, or at any time later. If the
    plugin cannot be loaded, a run that asks for it ends there, before Ray starts. Hydra itself would only
    warn, and the run would be synchronous.
    """
    guarded = _guarded_calls()
    for name in guarded:
        if name in sys.modules:
            _guard(sys.modules[name], guarded[name])
    if not any(isinstance(finder, _GuardingFinder) for finder in sys.meta_path):
        # At the front, or Python's own finders would answer before it.
        sys.meta_path.insert(0, _GuardingFinder(guarded))


class _Call(NamedTuple):
    """A call that begins runs, with the function that tells whether an argument asks for this package."""

    owner: str
    name: str
    asks: Callable[[Any], bool]


def _guarded_calls() -> dict[str, _Call]:
    """The calls of every doorway, by module."""
    doorways: list[Doorway] = [imported(find(DOORWAYS, name)) for name in sorted(provided(DOORWAYS).names)]
    return {
        module: _Call(*call, doorway.asks) for doorway in doorways for module, call in doorway.CALLS.items()
    }


def _guard(module: ModuleType, call: _Call) -> None:
    owner = getattr(module, call.owner)
    # Static, as `getattr` would bind a classmethod, which then looks like a function.
    stock = getattr_static(owner, call.name)
    function = getattr(stock, "__func__", stock)
    if hasattr(function, "watched"):
        return

    def begin(first: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr_static(owner, call.name)
        if any(map(call.asks, (*args, *kwargs.values()))):
            _register_or_explain()
        now = getattr_static(owner, call.name)
        if now is before:
            return function(first, *args, **kwargs)
        # The plugin has just replaced this call by its own, which calls this one in turn.
        return getattr(now, "__func__", now)(first, *args, **kwargs)

    begin.watched = True  # type: ignore[attr-defined]
    setattr(owner, call.name, classmethod(begin) if isinstance(stock, classmethod) else begin)


def _register_or_explain() -> None:
    try:
        register()
    except ImportError as error:
        raise RuntimeError(
            f"the config asks for rlinf-async, which cannot be loaded here: {error}. Fix that "
            "(rlinf-async doctor looks for causes), or take the async block out of the config"
        ) from error


class _GuardingFinder(MetaPathFinder):
    """Guards the calls of doorways as soon as their module is imported."""

    def __init__(self, guarded: Mapping[str, _Call]) -> None:
        self._guarded = guarded

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        call = self._guarded.get(fullname)
        if call is None:
            return None
        # Not by `sys.meta_path`, where this finder would find itself.
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _GuardingLoader(spec.loader, call)
        return spec


class _GuardingLoader(Loader):
    """Wraps the loader of a module, and guards the module after loading."""

    def __init__(self, loader: Loader, call: _Call) -> None:
        self._loader = loader
        self._call = call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _guard(module, self._call)
