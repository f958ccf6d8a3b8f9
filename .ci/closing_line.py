"""Sums the closing lines of several runs of pytest, as one line of the same form.

    python .ci/closing_line.py LOG

The exit status is 1 where a run has not ended, or has executed no test: who skips all shows nothing.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

CLOSING = re.compile(r"^=+ (?P<counts>.*) in (?P<seconds>[0-9.]+)s(?: \([0-9:]+\))? =+$", re.MULTILINE)
ORDER = ("failed", "passed", "skipped", "xfailed", "xpassed", "warning", "error")
"""As pytest prints them. Deselected tests belong to another run of the same tests."""
EXECUTED = ("failed", "passed", "xfailed", "xpassed", "error")
COUNT = re.compile(r"(\d+) ([a-z]+)")


def closing_line(log: str) -> str:
    """One line for all runs in `log`.

    Raises:
        ValueError: a run, or the only one, has not ended, or has executed no test.
    """
    runs = list(CLOSING.finditer(log))
    started = log.count("test session starts")
    if not runs or len(runs) < started:
        raise ValueError(
            f"{started - len(runs) or 1} of {started or 1} test runs ended without a closing line"
        )
    counts: Counter[str] = Counter()
    for run in runs:
        own = Counter({_singular(word): int(number) for number, word in COUNT.findall(run["counts"])})
        if not any(own[word] for word in EXECUTED):
            raise ValueError(f"a test run executed no test: {run['counts']}")
        counts.update(own)
    said = ", ".join(f"{counts[word]} {_plural(word, counts[word])}" for word in ORDER if counts[word])
    return f"=== {said or 'no tests ran'} in {sum(float(run['seconds']) for run in runs):.2f}s ==="


def _singular(word: str) -> str:
    return word.removesuffix("s") if word in ("warnings", "errors") else word


def _plural(word: str, number: int) -> str:
    return f"{word}s" if word in ("warning", "error") and number > 1 else word


if __name__ == "__main__":
    try:
        sys.stdout.write(closing_line(Path(sys.argv[1]).read_text()) + "\n")
    except ValueError as error:
        sys.exit(f"=== 1 failed: {error} ===")
