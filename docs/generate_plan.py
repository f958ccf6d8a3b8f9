"""Writes what docs/plan.md generates: plans from the trace of one run, against runs of other settings.

    python docs/generate_plan.py

It takes what `python -m benchmarks.schedules.held_out` has left. The prose of the page is left as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

from generated import fill

from benchmarks.schedules.held_out import RESULTS, table

PAGE = Path(__file__).with_name("plan.md")


def generate(page: str) -> str:
    """The page with its table anew."""
    return fill(page, {"held out": table(json.loads(RESULTS.read_text()))})


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
