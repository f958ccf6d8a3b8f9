"""`python -m tests.wire.simulation.wrong_lines [NUMBER...]`: how many schedules notice each wrong line?

Each line of `wrong_lines.toml` is made alone, in a copy of the package, and seeds are played there until one
fails, or `--most` have been.
"""

import argparse
import multiprocessing
import sys
from pathlib import Path

from tests.wrong_lines import each_alone, load_from

LINES = Path(__file__).with_suffix(".toml")


def tried(tree, first, most, answers):
    """Play seeds with the package in `tree`: how many, and what the last one failed by, if it did."""
    load_from(tree)
    from tests.wire.simulation.schedule import Schedule

    for seed in range(first, first + most):
        try:
            Schedule(seed).play()
        except Exception as error:  # noqa: BLE001 it is what is looked for
            answers.put((seed - first + 1, f"{type(error).__name__}: {error}".splitlines()[0][:90]))
            return
    answers.put((most, None))


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.wire.simulation.wrong_lines", description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--most", type=int, default=200, help="seeds that are played for a line")
    asked = parser.parse_args()
    fork = multiprocessing.get_context("fork")
    import torch  # noqa: F401 once: each process is a fork of this one

    def notice(tree, _):
        answers = fork.SimpleQueue()
        process = fork.Process(target=tried, args=(tree, asked.first, asked.most, answers))
        process.start()
        count, failure = answers.get()
        process.join()
        return failure is not None, f"{count}, {failure or 'NOT NOTICED'}"

    return min(1, each_alone(LINES, asked.numbers, notice))


if __name__ == "__main__":
    sys.exit(main())
