"""The resources of a run, its processes' and the machine's, in words; and which will run out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from rlinf_async.core.growth import Foreteller, Foretold, Held
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.holdings import Holding, as_plain
from rlinf_async.observe.pace import seconds
from rlinf_async.observe.run_dir import RunDir

SHARED_MEMORY = Path("/dev/shm")
SAMPLE_INTERVAL_S = 1.0
RUN_HOLDER = "the run"
"""The name, among those of processes, for resources of no single process: shared memory and the run
directory."""
MAX_ENTRIES = 20_000
"""The most files of a run directory that are counted for its size."""
BYTE_RESOURCES = frozenset({"memory", "GPU memory", "address space", "shared memory", "disk"})
"""Resources that are counted in bytes; others are numbers of things."""

STEADY_SHARE = 0.01
"""Usage that changes by a smaller share of itself in a minute is called steady."""


def held_by_machine(run_dir: Path) -> Holding:
    """Return the used `shared memory` of this machine, and the size of a run directory on its `disk`."""
    holding: dict[str, tuple[float, float]] = {}
    with suppress(OSError):
        shared = psutil.disk_usage(str(SHARED_MEMORY))
        holding["shared memory"] = shared.used, shared.used + shared.free
    with suppress(OSError):
        size = size_of(run_dir)
        holding["disk"] = size, size + psutil.disk_usage(str(run_dir)).free
    return as_plain(holding)


def size_of(directory: Path) -> int:
    """Return the bytes on the disk of all files in a directory, at any depth; links are not followed."""
    total, entries, folders = 0, 0, [str(directory)]
    while folders and entries < MAX_ENTRIES:
        with suppress(OSError), os.scandir(folders.pop()) as found:
            for entry in found:
                entries += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def as_held(holding: Any) -> dict[str, Held]:
    """Return the holding of plain data; damaged entries are left out."""
    found = {}
    for what, held in holding.items() if isinstance(holding, Mapping) else ():
        if isinstance(held, Mapping) and isinstance(value := held.get("value"), int | float):
            limit = held.get("limit")
            found[str(what)] = Held(
                value=value, limit=limit if isinstance(limit, int | float) else float("inf")
            )
    return found


def sentence_of(foretold: Foretold) -> str:
    """Return a forecast in a sentence: the resource, its growth, and the time until its limit is reached."""
    what, held = foretold.what, foretold.held
    say = partial(amount, what)
    return (
        f"its use of {what} grows by {say(foretold.per_second * 60)} a minute: it uses {say(held.value)} of "
        f"at most {say(held.limit)}, which it reaches in {seconds(foretold.seconds)}"
    )


def in_words(holding: Any) -> str:
    """Return a holding in a line: `1.2 GB memory, 34 descriptors, 12 threads`."""
    return ", ".join(f"{amount(what, held.value)} {what}" for what, held in as_held(holding).items())


def amount(what: str, value: float) -> str:
    """Return an amount of a resource in words: `1.2 GB` of memory, `34` descriptors."""
    return _bytes(value) if what in BYTE_RESOURCES else _count(value)


def growth_in_words(what: str, held: Any) -> str:
    """Return the growth of a resource, as plain data of the status: `+10 MB a minute`, `steady`; "" if it is
    unknown.
    """
    value, per_minute = (held.get(name) for name in ("value", "per_minute"))
    if not isinstance(value, int | float) or not isinstance(per_minute, int | float):
        return ""
    if abs(per_minute) < STEADY_SHARE * value or not per_minute:
        return "steady"
    return f"{'+' if per_minute > 0 else '-'}{amount(what, abs(per_minute))} a minute"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"


def _count(count: float) -> str:
    return f"{count:.0f}" if count >= 10 else f"{count:.2g}"


class ResourceLog:
    """Follows the resources of a run's processes, and forecasts which will run out.

    A forecast is printed, and recorded as a fault the first time that a resource of a process has one.
    """

    def __init__(self, run_dir: Path, *, say: Callable[[str], None]) -> None:
        self._run_dir, self._say = run_dir, say
        self._foreteller = Foreteller()
        self._last_look = float("-inf")
        self._status: dict[str, Any] = {}

    def look(
        self, now: float, processes: Mapping[str, Holding] | Callable[[], Mapping[str, Holding]]
    ) -> dict[str, Any]:
        """Take a sample of `processes` by name, at `now` in seconds; return `holds` and `foretold` for the
        status.

        A call within `SAMPLE_INTERVAL_S` of the last one returns the same, and does not call `processes`;
        so does a call that cannot take a sample.
        """
        if now - self._last_look < SAMPLE_INTERVAL_S:
            return self._status
        self._last_look = now
        try:
            asked = processes() if callable(processes) else processes
        except (OSError, MemoryError, psutil.Error):  # a process without descriptors cannot read `/proc`
            return self._status
        holdings = {**asked, RUN_HOLDER: held_by_machine(self._run_dir)}
        foretold = dict(self._status.get("foretold", {}))
        for end in self._foreteller.look(now, {name: as_held(held) for name, held in holdings.items()}):
            sentence, key = sentence_of(end), f"{end.process}, {end.what}"
            if key not in foretold:
                RunDir(self._run_dir).record(Fault(process=end.process, what="runs out", error=sentence))
            foretold[key] = f"{end.process}: {sentence}"
            self._say(foretold[key])
        for name, holding in holdings.items():
            for what, held in holding.items():
                if (growth := self._foreteller.per_second(name, what)) is not None:
                    held["per_minute"] = growth * 60
        self._status = {"holds": holdings, "foretold": foretold}
        return self._status
