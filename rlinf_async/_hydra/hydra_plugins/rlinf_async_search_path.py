"""Puts rlinf-async's config groups on Hydra's search path, and watches for runs that ask for it.

Hydra imports every module of the `hydra_plugins` namespace whenever any application starts, and only warns
when that fails, so this file imports nothing heavy: the plugin itself is loaded by the run that needs it.
"""

from importlib.util import find_spec
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from rlinf_async.plugin import watch

watch()


class RLinfAsyncSearchPath(SearchPathPlugin):
    """Makes `+async=full` and this package's configs available to every Hydra application."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="rlinf-async", path="pkg://rlinf_async.configs")
        # Configs for veRL begin with its own. Named as a folder: as a package, it would be imported.
        verl = find_spec("verl")
        for folder in (verl.submodule_search_locations or ()) if verl else ():
            search_path.append(provider="verl", path=f"file://{Path(folder, 'trainer', 'config')}")
