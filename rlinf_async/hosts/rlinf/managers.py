"""RLinf's managers and its probe of a node, in processes without torch.

A cluster of RLinf starts five managers and a probe on each node, each an actor of Ray in a process of its
own. By importing their class a process loads torch, which takes more time than all else, and none uses it.
Here each class gets a subclass that a process imports from this module, which first arranges the imports.
The subclass changes nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import ray

from rlinf_async.hosts.rlinf.imports import names_when_used
from rlinf_async.hosts.rlinf.late_imports import parts_when_used, torch_when_used
from rlinf_async.ray_runtime.cluster.ray_processes import is_own

PACKAGE = "rlinf.scheduler"
PROBE = "_RemoteNodeProbe"
PLACES = {PROBE: f"{PACKAGE}.cluster.node"}
"""Where classes are that `MANAGERS` does not have."""
MANAGERS = f"{PACKAGE}.manager"
LOCK_MANAGERS = ("DeviceLockManager", "PortLockManager")
USED_BY_LOCK_MANAGERS = f"{PACKAGE}.worker"
"""What they import when they have started, for the question whether a worker lives."""


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    with torch_when_used(), names_when_used():
        parts_when_used(PACKAGE)
        if name in LOCK_MANAGERS:
            import_module(USED_BY_LOCK_MANAGERS)
        stock = _original(getattr(import_module(PLACES.get(name, MANAGERS)), name))
    light: type = type(stock)(name, (stock,), {"__module__": __name__, "__doc__": stock.__doc__})
    globals()[name] = light
    return light


def _original(cls: Any) -> type:
    """Return the class that Ray's decorator has turned into an actor."""
    meta = getattr(cls, "__ray_metadata__", None)
    found: type = cls if meta is None else meta.modified_class.__ray_actor_class__
    return found


def light(cls: type) -> type:
    """Return the subclass for a class of `MANAGERS`, and any other class as it is."""
    if getattr(sys.modules.get(MANAGERS), cls.__name__, None) is not cls:
        return cls
    found: type = getattr(sys.modules[__name__], cls.__name__)
    return found


@contextmanager
def light_processes(cluster: type) -> Iterator[None]:
    """A block where RLinf's `cluster` starts light processes, if Ray's cluster is the run's own.

    In another cluster Ray's processes may run in an environment without this package. An RLinf that starts
    its managers otherwise is left as it is.
    """
    launch: Callable[..., Any] | None = getattr(cluster, "_launch_manager_actor", None)
    node = import_module(PLACES[PROBE])
    if launch is None or not hasattr(node, PROBE):
        yield
        return

    def launch_light(own: Any, manager_cls: type, manager_node: Any, runtime_env: Any, *args: Any) -> Any:
        if is_own():
            manager_cls = light(manager_cls)
            runtime_env = {} if _is_given(runtime_env) else runtime_env
        return launch(own, manager_cls, manager_node, runtime_env, *args)

    with (
        patch.object(cluster, "_launch_manager_actor", launch_light),
        patch.object(node, PROBE, _Probe(getattr(node, PROBE), getattr(sys.modules[__name__], PROBE))),
    ):
        yield


NAMESPACE = "CLUSTER_NAMESPACE"
"""The variable with the namespace of RLinf's actors; a process without it uses `DEFAULT_NAMESPACE`."""
DEFAULT_NAMESPACE = "RLinf"


def _is_given(runtime_env: Mapping[str, Any]) -> bool:
    """Return True if a process of the run's own cluster, which has inherited this process's variables, needs
    no runtime environment: Ray starts a process with one by way of a second interpreter.
    """
    variables = runtime_env.get("env_vars", {})
    inherited = {NAMESPACE: DEFAULT_NAMESPACE, **os.environ}
    return set(runtime_env) <= {"env_vars"} and variables.items() <= inherited.items()


class _Probe:
    """Both probes as one actor class, which chooses when options are given: then Ray is up."""

    def __init__(self, stock: Any, light: type) -> None:
        self._stock, self._light = stock, light

    def options(self, **options: Any) -> Any:
        probe: Any = ray.remote(self._light) if is_own() else self._stock
        return probe.options(**options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stock, name)
