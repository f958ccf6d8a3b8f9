"""Versions of what a run under veRL depends on; known without importing veRL."""

from __future__ import annotations

from importlib.metadata import version

from rlinf_async import __version__

FIRST_RELEASE, FIRST_UNSUPPORTED_RELEASE = (0, 9, 1), (0, 10)
"""Supported releases of veRL: from the first of these on, and below the second."""


def versions() -> dict[str, str]:
    """Return the versions of this package, of veRL, and of the packages that both need.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    return {"rlinf-async": __version__, **{name: version(name) for name in ("verl", "ray", "torch")}}
