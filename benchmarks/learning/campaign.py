"""Running many cells, several at a time; a cell that has a result is not run again."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.console import Console

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


def _prepare_process() -> None:
    os.environ.update(OWN_CLUSTER)
