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
        """The name of the cell, which no other cell has."""

    def run(self) -> Any:
        """Run it to its end; what comes of it is for each experiment to say."""


AnyCell = TypeVar("AnyCell", bound=Cell)


def run_in_turn(cells: Sequence[AnyCell], run: Callable[[AnyCell, str], str], console: Console) -> None:
    """Run all cells, and say of each what came out and after how many seconds.

    Args:
        run: takes a cell and its title, and returns in a few words what came out.
    """
    for number, cell in enumerate(cells, start=1):
        title = f"[{number}/{len(cells)}] {cell.name}"
        began = time.monotonic()
        words = run(cell, title)
        console.print(f"{title}: {words} ({time.monotonic() - began:.0f} s)", markup=False, soft_wrap=True)
