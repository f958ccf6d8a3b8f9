"""Garbage collection in the processes of a run."""

from __future__ import annotations

import gc


def exempt_present_objects() -> None:
    """Leave the objects that this process holds now out of every later search for garbage.

    torch, transformers and a framework leave some million objects behind, nearly all of them for good. A
    full collection looks at each: 0.3 to 0.6 s, in which no thread of the process runs Python. RLinf asks
    for one after every batch (`clear_memory`), and Python makes one when enough new objects have lived long.

    An object that is kept is freed as ever when nothing refers to it any more. Only an object that refers to
    itself in a circle, and is dropped later, stays until the next call: the first environments of a run, say,
    if they are rebuilt.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
