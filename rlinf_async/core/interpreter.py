"""Modes of Python in which the packages that a run needs cannot be imported."""

from __future__ import annotations

import sys

NO_DOCSTRINGS = 2
"""The level of `PYTHONOPTIMIZE` from which modules have no docstrings."""


def check_interpreter(optimize: int = sys.flags.optimize) -> None:
    """Check that Ray's modules, some of which add to their docstrings, can be imported.

    Raises:
        ValueError: Python runs without docstrings.
    """
    if optimize >= NO_DOCSTRINGS:
        raise ValueError(
            f"PYTHONOPTIMIZE={optimize} (python -OO) leaves out docstrings, without which Ray cannot be "
            "imported; unset PYTHONOPTIMIZE"
        )
