"""An extension module for RLinf (`RLINF_EXT_MODULE`) that has each Ray node pass for a machine of its own.

What tests want to know is written into the file that NOTES names: a line `began TEMPLATE` in each worker,
with the number of the process that it was forked from, or 0; a line `fetched PROCESS CHANGES VERSION` where
an inference rank has fetched weights from another machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rlinf_async.ray_runtime.cluster import worker_template

NOTES = "NOTES"


def note(*words: object) -> None:
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def template() -> int:
    """The number of the template that this process was forked from; 0 if Python was started for it."""
    parent = os.getppid()
    return parent if worker_template.__file__ in Path(f"/proc/{parent}/cmdline").read_text() else 0


def register() -> None:
    from rlinf_async.ray_runtime.publication import weight_file
    from rlinf_async.ray_runtime.publication.weight_mirror import WeightMirror
    from rlinf_async.wire import memory
    from rlinf_async.wire.nodes import this_node

    note("began", template())
    fetch = WeightMirror._fetch

    async def fetch_and_note(mirror: WeightMirror, place: Any) -> None:
        await fetch(mirror, place)
        note("fetched", os.getpid(), int(place.changes), place.version)

    WeightMirror._fetch = fetch_and_note
    memory.machine = weight_file.machine = this_node
