"""Writes the table of models and simulators in docs/models.md, and the evidence below it.

python docs/generate_models.py
"""

from __future__ import annotations

from pathlib import Path

from generated import fill
from what_works import ACCEPTED, evidence, table

PAGE = Path(__file__).with_name("models.md")


def generate(page: str) -> str:
    """The page with both tables written anew."""
    return fill(page, {"models and simulators": table(ACCEPTED.read_text()), "evidence": evidence()})


if __name__ == "__main__":
    PAGE.write_text(generate(PAGE.read_text()))
