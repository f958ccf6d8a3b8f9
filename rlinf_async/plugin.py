"""`register()`: what RLinf, Hydra and the command line call, in every process, any number of times."""

from __future__ import annotations

from rlinf_async.entry_points import load_class


def register() -> None:
    """Install the plugin in this process: the driver, or a worker that loads it by `RLINF_EXT_MODULE`."""
    load_class("rlinf_async.hosts", "rlinf").install()


def unregister() -> None:
    """Take the plugin out of this process; RLinf runs as it would without it."""
    load_class("rlinf_async.hosts", "rlinf").remove()


def is_registered() -> bool:
    """Whether the plugin is installed in this process."""
    return load_class("rlinf_async.hosts", "rlinf").installed
