"""What is the same for all tests of a process is read once: the grammar of interpolations, our own configs.

OmegaConf parses a text again whenever it resolves it, and Hydra composes a config again for each test that
asks for it. Both take much of the time of tests of configs.
"""

import pickle
from contextlib import suppress
from functools import cache


def read_once() -> None:
    """Before modules are imported that take these functions with them."""
    with suppress(ImportError):
        import omegaconf._utils
        import omegaconf.base

        omegaconf.base.parse = omegaconf._utils.parse = cache(omegaconf.base.parse)
    with suppress(ImportError):
        from rlinf_async import compose

        compose._compose_once = _remembering(compose._compose_once)


def _remembering(compose_once):
    """Return a `compose_once` that composes nothing twice, and gives every caller a copy of his own.

    It remembers nothing of a folder of the user's: its files may change.
    """
    composed = {}

    def compose(name, overrides, directory):
        if directory is not None or any("hydra" in override for override in overrides):
            return compose_once(name, overrides, directory)
        asked = (name, *overrides)
        if asked not in composed:
            composed[asked] = pickle.dumps(compose_once(name, overrides, None))
        return pickle.loads(composed[asked])

    return compose
