"""Puts rlinf-async's config groups on Hydra's search path and activates the plugin in the driver.

Hydra imports every module of the `hydra_plugins` namespace whenever any application starts, so this
file imports nothing heavy: the plugin itself is loaded only where RLinf already is.
"""

import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

if "rlinf.scheduler" in sys.modules:
    from rlinf_async.plugin import register

    register()


class RLinfAsyncSearchPath(SearchPathPlugin):
    """Makes `+async=full` and this package's configs available to every Hydra application."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(provider="rlinf-async", path="pkg://rlinf_async.configs")
