"""Versions of what a run under veRL depends on; known without importing veRL."""

from __future__ import annotations

from importlib.metadata import version

from rlinf_async import __version__

LEAST, BELOW = (0, 9, 1), (0, 10)
"""Of veRL: the releases that are supported begin and end with these."""


def versions() -> dict[str, str]:
    """Of this package, of veRL, and of what both stand on.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    return {"rlinf-async": __version__, **{name: version(name) for name in ("verl", "ray", "torch")}}
