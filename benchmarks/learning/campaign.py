"""Running many cells, resumably, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from benchmarks.learning.cells import Cell

console = Console(highlight=False)


def run_all(cells: Sequence[Cell], *, jobs: int) -> list[Cell]:
    """Run every cell that has no result yet, `jobs` at a time; the cells that failed."""
    todo = [cell for cell in cells if not cell.path.exists()]
    console.print(f"{len(cells)} runs, {len(cells) - len(todo)} are there already")
    with ThreadPoolExecutor(jobs) as pool:
        succeeded = list(pool.map(_run_apart, todo))
    return [cell for cell, success in zip(todo, succeeded, strict=True) if not success]


def _run_apart(cell: Cell) -> bool:
    command = [sys.executable, "-m", "benchmarks.learning", "cell", cell.as_json()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    console.print(f"{'done' if done.returncode == 0 else '[red]failed[/]'}  {cell.name}")
    if done.returncode:
        console.print(done.stderr[-2000:], markup=False)
    return done.returncode == 0
