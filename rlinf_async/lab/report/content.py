"""The content of a page, before it is HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Key = tuple[str, str]
"""A word and its colour."""
Legend = Sequence[tuple[str, Sequence[Key]]]
"""Keys in groups; a group may have no name."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells of text; the first column names the row, the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    numbers: bool = True
    """True if all columns but the first are numbers, rather than words."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart, its legend, and the same numbers as a table."""

    title: str
    note: str = ""
    """A sentence about the figure."""
    drawing: str
    """The chart as HTML, as `drawing` makes it."""
    legend: Legend = ()
    table: Table | None = None
    wide: bool = False
    """True if the figure takes the width of the page."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page: a heading, a sentence that explains it, figures and tables."""

    id: str
    nav: str
    """The section's title in the navigation, as short as it can be."""
    title: str
    sentence: str
    legend: Legend = ()
    """The meaning of the colours in all figures of the section."""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    remarks: Sequence[str] = ()
    absent: Sequence[str] = ()
    """The parts that the section cannot show, and why."""

    @property
    def shows(self) -> bool:
        """True if there is a figure or a table."""
        return bool(self.figures or self.tables)

    @property
    def columns(self) -> int:
        """The number of columns of its figures on a wide screen."""
        narrow = sum(not figure.wide for figure in self.figures)
        return 1 if len(self.figures) == 1 else 3 if narrow == 3 else 2
