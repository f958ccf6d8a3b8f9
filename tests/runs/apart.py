"""An extension module for RLinf (`RLINF_EXT_MODULE`) that has each Ray node pass for a machine of its own.

Which inference rank has fetched weights from another machine is written into the file that FETCHED names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FETCHED = "FETCHED"


def note(line: str) -> None:
    with Path(os.environ[FETCHED]).open("a") as file:
        file.write(f"{line}\n")


def register() -> None:
    from rlinf_async.ray_runtime import memory, weight_file
    from rlinf_async.ray_runtime.connection import this_node
    from rlinf_async.ray_runtime.weight_mirror import WeightMirror

    fetch = WeightMirror._fetch

    async def noted(mirror: WeightMirror, place: Any) -> None:
        await fetch(mirror, place)
        note(f"{os.getpid()} {int(place.changes)} {place.version}")

    WeightMirror._fetch = noted
    memory.machine = weight_file.machine = this_node
