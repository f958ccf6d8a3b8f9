"""The least that the bytes of a rollout cost between two processes: two copies, and pages that are mapped.

Both sides are in one process, without messages and samples. Every row is copied into a memory file, and from
there into a micro-batch, in a random order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.micro.kit import medians
from rlinf_async.wire.memory import Adjoined, MemoryFile, Pickled, map_pages, open_memory, read

FILES = 16
FILE_ROWS = 192
"""Three pictures of each of 64 decisions."""
ROW_BYTES = 3 * 224 * 224
MICRO_BATCH_ROWS = 64
WARM_UP_ROUNDS = 2
GIGABYTE = 10**9


def measure(rounds: int) -> dict[str, float]:
    """Return CPU seconds a gigabyte, medians over the rounds; `pread` takes the place of `map`, `copy` and
    `unmap`.
    """
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 256, (FILES, FILE_ROWS, ROW_BYTES), np.uint8)
    order = draw.permutation(FILES * FILE_ROWS)
    values = [Pickled(Adjoined(list(of_file))) for of_file in rows]
    memory, micro_batch = [MemoryFile() for _ in values], np.zeros((MICRO_BATCH_ROWS, ROW_BYTES), np.uint8)
    found = []
    for _ in range(WARM_UP_ROUNDS + rounds):
        spent: dict[str, float] = {}
        with _timed(spent, "write"):
            places = [one.write(value) for one, value in zip(memory, values, strict=True)]
        with _timed(spent, "map"):
            arrays = [read(place) for place in places]
            for array in arrays:
                map_pages(array.ctypes.data, array.nbytes)
        with _timed(spent, "copy"):
            for place, (file, row) in enumerate(_places(order)):
                micro_batch[place % MICRO_BATCH_ROWS] = arrays[file][row]
        assert (micro_batch[place % MICRO_BATCH_ROWS] == rows[file, row]).all()
        with _timed(spent, "unmap"):
            del array, arrays
        micro_batch.fill(0)
        opened = [open_memory(*place[:2], *place[2][0]) for place in places]
        with _timed(spent, "pread"):
            for place, (file, row) in enumerate(_places(order)):
                os.preadv(opened[file].fileno(), [micro_batch[place % MICRO_BATCH_ROWS]], row * ROW_BYTES)
        assert (micro_batch[place % MICRO_BATCH_ROWS] == rows[file, row]).all()
        for descriptor in opened:
            descriptor.close()
        found.append({name: seconds / (rows.nbytes / GIGABYTE) for name, seconds in spent.items()})
    for one in memory:
        one.close()
    least = [{**spent, "least": sum(spent.values()) - spent["pread"]} for spent in found]
    return {"rounds": rounds, **medians(least[WARM_UP_ROUNDS:])}


def _places(order: np.ndarray) -> Iterator[tuple[int, int]]:
    return (divmod(number, FILE_ROWS) for number in order.tolist())


@contextmanager
def _timed(spent: dict[str, float], name: str) -> Iterator[None]:
    before = time.process_time()
    yield
    spent[name] = time.process_time() - before
