"""`register()`: what RLinf, Hydra and the command line call, in every process, any number of times."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlinf_async.hosts.rlinf.host import RLinfHost

_host: RLinfHost | None = None


def register() -> None:
    """Install the plugin in this process: the driver, or a worker that loads it by `RLINF_EXT_MODULE`."""
    global _host
    from rlinf_async.hosts.rlinf.host import CHAINED, RLinfHost
    from rlinf_async.hosts.rlinf.models import register_models

    if _host is None:
        _host = RLinfHost()
    if _host.installed:
        return
    _host.install()
    register_models()
    if "WORKER_NAME" in os.environ:
        _equip_worker()
    if chained := os.environ.get(CHAINED):
        # The user's own extension module, whose place in the environment this plugin has taken.
        importlib.import_module(chained).register()


def unregister() -> None:
    """Take the plugin out of this process; RLinf runs as it would without it."""
    if _host is not None:
        _host.remove()


def is_registered() -> bool:
    """Whether the plugin is installed in this process."""
    return _host is not None and _host.installed


def _equip_worker() -> None:
    from rlinf.scheduler import Worker

    from rlinf_async.hosts.rlinf.platform import provide_cpu_platform

    provide_cpu_platform(Worker)
