"""Running what the preregistration asks for, in its order, resumably."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Literal

from rich.console import Console

from benchmarks.learning.preregistration import Preregistration, Setting, Side, load

console = Console(highlight=False)

Job = tuple[str, Side, int]
"""A setting's name, the side and the seed of one of its runs."""


def missing(
    stated: Preregistration, names: Sequence[str] = (), *, host: Literal["local", "rlinf"]
) -> list[Job]:
    """The runs on `host` that have no result, pair by pair; of the settings in `names`, or of all."""
    jobs: dict[object, Job] = {}
    for setting, seed in _pairs(stated, names, host):
        sides: tuple[Side, Side] = ("synchronous", "asynchronous")
        for side in sides:
            path = setting.path(side, seed)
            if not path.exists():
                jobs.setdefault(path, (setting.name, side, seed))
    return list(jobs.values())


def _pairs(stated: Preregistration, names: Sequence[str], host: str) -> Iterator[tuple[Setting, int]]:
    for setting in stated.settings:
        if setting.host == host and (not names or setting.name in names):
            yield from ((setting, seed) for seed in setting.seeds)


def run_all(jobs: Sequence[Job], *, processes: int) -> int:
    """Run `jobs`; the number of those that failed. A process runs many, so that its imports are made once."""
    failed = 0
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_run, job) for job in jobs]):
            job, error = done.result()
            failed += error is not None
            console.print(f"{'done' if error is None else '[red]failed[/]'}  {' '.join(map(str, job))}")
            if error is not None:
                console.print(error, markup=False)
    return failed


def _run(job: Job) -> tuple[Job, str | None]:
    """In a worker process. Whatever a run fails of is its own, and the others go on."""
    name, side, seed = job
    if next(one.host for one in load().settings if one.name == name) == "local":
        from benchmarks.learning import preregistered_run as host
    else:
        from benchmarks.learning import preregistered_rlinf as host
    try:
        host.run(name, side, seed)
    except (RuntimeError, ValueError, ArithmeticError):
        return job, traceback.format_exc()
    return job, None
