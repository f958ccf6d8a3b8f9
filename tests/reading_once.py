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


class Copies:
    """What was made once; whoever asks for it has a copy of his own."""

    def __init__(self):
        self.pickled = {}

    def get(self, key, make):
        if key not in self.pickled:
            self.pickled[key] = pickle.dumps(make())
        return pickle.loads(self.pickled[key])


def _remembering(compose_once):
    """Return a `compose_once` that composes nothing twice, and reads no file of a package twice.

    It remembers nothing of a folder of the user's: its files may change.
    """
    composed = Copies()

    def compose(name, overrides, directory):
        if directory is not None or any("hydra" in override for override in overrides):
            return compose_once(name, overrides, directory)
        cfg = composed.get((name, *overrides), lambda: compose_once(name, overrides, None))
        _read_packages_once()
        return cfg

    return compose


@cache
def _read_packages_once():
    """Once Hydra has loaded its plugins, which have a copy of the class."""
    from hydra._internal.sources_registry import SourcesRegistry

    source_class = SourcesRegistry.instance().resolve("pkg")
    load, read = source_class.load_config, Copies()

    def load_config(source, config_path):
        return read.get((source.provider, source.path, config_path), lambda: load(source, config_path))

    source_class.load_config = load_config
