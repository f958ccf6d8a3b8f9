"""Writes the table of models and simulators in README.md.

    python docs/generate_readme.py

Which of RLinf's example configs are accepted is read from docs/rlinf-configs.md. What has trained and learned
is listed here, each with the tests or the result that show it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from generated import fill
from what_works import ACCEPTED, CPU, GPU, MODELS, OTHERS, accepted, runs

from rlinf_async.lab.table import markdown

PAGE = Path(__file__).parents[1] / "README.md"
COLUMNS = ("LIBERO", "Meta-World", "ManiSkill", "RoboTwin", OTHERS)
WORDS = {CPU: "trained on CPU", GPU: "trained on a GPU"}


def table(page: str) -> str:
    """A row for each family of models, a column for each of the simulators that most configs have."""
    counts: Counter[tuple[str, str]] = Counter()
    for (model, simulator), count in accepted(page).items():
        counts[model, simulator if simulator in COLUMNS else OTHERS] += count
    shown = {
        cell: dict.fromkeys(WORDS.get(run.shown, run.shown) for run in of) for cell, of in runs(page).items()
    }

    def words(cell: tuple[str, str]) -> str:
        return "; ".join([*shown.get(cell, ()), *([f"{counts[cell]} accepted"] if counts[cell] else [])])

    return markdown(
        ["", *COLUMNS], [[model, *(words((model, each)) for each in COLUMNS)] for model in MODELS]
    )


def generate(page: str) -> str:
    """The page with its table written anew."""
    return fill(page, {"what works": table(ACCEPTED.read_text())})


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
