"""Running many cells, several at a time; a cell that has a result is not run again."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.learning import tables
from benchmarks.learning.cells import add_row
from rlinf_async.lab.cells import AnyCell
from rlinf_async.lab.process import OWN_CLUSTER

console = Console(highlight=False)


def run_all(cells: Sequence[AnyCell], *, processes: int) -> list[AnyCell]:
    """Run `cells`; those that failed, of whatever they did. The others go on.

    A process runs many, so that its imports are made once, and runs them in its main thread, where what
    interrupts it ends what the run has started.
    """
    failed = []
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_prepare_process)
    try:
        runs = {pool.submit(cell.run): cell for cell in cells}
        for done in as_completed(runs):
            cell, error = runs[done], done.exception()
            console.print(f"{'done' if error is None else '[red]failed[/]'}  {cell.name}")
            if error is not None:
                failed.append(cell)
                console.print("".join(traceback.format_exception(error)), markup=False)
    finally:
        pool.shutdown(cancel_futures=True)
    return failed


def by_seed(
    path: Path,
    seeds: Sequence[int],
    *,
    runs: Callable[[Sequence[int]], Iterable[Any]],
    stored: Callable[[], Mapping[Any, Any]],
    trained: Callable[[Any], Mapping[str, Any]],
    report: Callable[[Mapping[Any, Any]], str],
) -> None:
    """The command of an experiment whose rows are in `path`: run what is missing, one after the other, and
    write the tables under the same name.
    """
    parser = argparse.ArgumentParser(description="see the module")
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), help="of those that are planned")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for run in () if asked.report else runs(asked.seeds):
        if run not in stored():  # asked each time: another process may make other seeds
            add_row(path, trained(run))
    print(tables.write(f"{path.stem}.md", report(stored())))


def _prepare_process() -> None:
    os.environ.update(OWN_CLUSTER)
