"""What is installed, and the grammar of interpolations, are the same for all tests of a process: read once.

Whoever judges a config asks a dozen times which entry points there are, in the files of two hundred packages;
OmegaConf parses a text again whenever it resolves it. Both took half of the time of the tests of configs.
"""

import importlib.metadata
import sys
from contextlib import suppress
from functools import cache


def read_once() -> None:
    """Before modules are imported that take these functions with them."""
    assert "rlinf_async.entry_points" not in sys.modules
    read = importlib.metadata.entry_points

    @cache
    def of_path(path, *given):
        return read(**dict(given))

    def entry_points(**given):
        return of_path(tuple(map(str, sys.path)), *sorted(given.items()))

    importlib.metadata.entry_points = entry_points
    with suppress(ImportError):
        import omegaconf._utils
        import omegaconf.base

        omegaconf.base.parse = omegaconf._utils.parse = cache(omegaconf.base.parse)
