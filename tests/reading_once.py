"""The grammar of interpolations is the same for all tests of a process: a text is parsed once.

OmegaConf parses a text again whenever it resolves it, which takes much of the time of tests of configs.
"""

from contextlib import suppress
from functools import cache


def read_once() -> None:
    """Before modules are imported that take this function with them."""
    with suppress(ImportError):
        import omegaconf._utils
        import omegaconf.base

        omegaconf.base.parse = omegaconf._utils.parse = cache(omegaconf.base.parse)
