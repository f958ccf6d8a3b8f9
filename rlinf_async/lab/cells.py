"""The runs of an experiment, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from rich.console import Console


class Cell(Protocol):
    """One run of an experiment: a line of its table under one seed, or in one repetition."""

    @property
    def name(self) -> str:
        """The unique name of the cell."""

    def run(self) -> Any:
        """Make the run to its end; each experiment defines the returned value."""


AnyCell = TypeVar("AnyCell", bound=Cell)


def run_in_turn(cells: Sequence[AnyCell], run: Callable[[AnyCell, str], str], console: Console) -> None:
    """Run all cells, and print the result and the seconds of each.

    Args:
        run: makes the run of a cell, given the cell and its title, and returns its result in a few words.
    """
    for number, cell in enumerate(cells, start=1):
        title = f"[{number}/{len(cells)}] {cell.name}"
        began = time.monotonic()
        words = run(cell, title)
        console.print(f"{title}: {words} ({time.monotonic() - began:.0f} s)", markup=False, soft_wrap=True)
