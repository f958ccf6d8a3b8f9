"""Running what the preregistration asks for, in its order, resumably."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console

from benchmarks.learning.preregistration import Setting, Side

console = Console(highlight=False)

Job = tuple[Setting, Side, int]
"""A setting, and the side and the seed of one of its runs."""


def missing(settings: Iterable[Setting]) -> list[Job]:
    """The runs of `settings` that have no result, pair by pair."""
    sides: tuple[Side, Side] = ("synchronous", "asynchronous")
    jobs: dict[Path, Job] = {}
    for setting in settings:
        for seed in setting.seeds:
            for side in sides:
                path = setting.path(side, seed)
                if not path.exists():
                    jobs.setdefault(path, (setting, side, seed))
    return list(jobs.values())


def run_all(jobs: Sequence[Job], *, processes: int) -> int:
    """Run `jobs`; the number of those that failed. A process runs many, so that its imports are made once."""
    failed = 0
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_run, job) for job in jobs]):
            job, error = done.result()
            failed += error is not None
            setting, side, seed = job
            console.print(f"{'done' if error is None else '[red]failed[/]'}  {setting.name} {side} {seed}")
            if error is not None:
                console.print(error, markup=False)
    return failed


def _run(job: Job) -> tuple[Job, str | None]:
    """In a worker process. Whatever a run fails of is its own, and the others go on."""
    setting, side, seed = job
    if setting.host == "local":
        from benchmarks.learning import preregistered_run as host
    else:
        from benchmarks.learning import preregistered_rlinf as host
    try:
        host.run(setting, side, seed)
    except (RuntimeError, ValueError, ArithmeticError):
        return job, traceback.format_exc()
    return job, None
