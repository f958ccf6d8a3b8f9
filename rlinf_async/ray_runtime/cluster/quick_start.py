"""A start of Ray without work that only costs time: two imports, each of half a second and more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ray._private import ray_constants, utils

from rlinf_async.ray_runtime.cluster import setup_worker

SCRIPT_NAME = "SETUP_WORKER_FILENAME"
"""Ray's constant with the name of the script that starts worker processes with variables of their own."""
CHECK = "get_dashboard_dependency_error"
"""Ray's function that imports what its dashboard imports, to see if it is there."""
DASHBOARDS_PACKAGES = ("aiohttp", "aiohttp_cors", "grpc", "opencensus", "opentelemetry", "prometheus_client")


@contextmanager
def starting_quickly() -> Iterator[None]:
    """A block where a Ray cluster that this process starts uses `setup_worker`, and where the packages of
    Ray's dashboard are looked up instead of imported.

    A Ray version without one of these private names starts as ever.
    """
    with ExitStack() as patches:
        if hasattr(ray_constants, SCRIPT_NAME) and sys.platform == "linux":
            # Ray joins it to a folder, which an absolute path replaces.
            own = str(Path(setup_worker.__file__).resolve())
            patches.enter_context(patch.object(ray_constants, SCRIPT_NAME, own))
        if hasattr(utils, CHECK):
            patches.enter_context(patch.object(utils, CHECK, _looked_up(getattr(utils, CHECK))))
        yield


def _looked_up(imported: Callable[[], Any]) -> Callable[[], Any]:
    def look() -> Any:
        return None if all(find_spec(name) for name in DASHBOARDS_PACKAGES) else imported()

    return look
