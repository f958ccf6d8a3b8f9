"""`python -m tests.wire.simulation.wrong_lines [NUMBER...]`: how many schedules notice each wrong line?

Each line of `wrong_lines.toml` is made alone, in a copy of the package, and seeds are played there until one
fails, or `--most` have been.
"""

import argparse
import multiprocessing
import sys
import tempfile
import tomllib
from pathlib import Path

from tests.wrong_lines import changed, copy_of_tree

LINES = Path(__file__).with_suffix(".toml")


def tried(tree, first, most, answers):
    """Play seeds with the package in `tree`: how many, and what the last one failed by, if it did."""
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rlinf_async", "tests")]:
        del sys.modules[name]
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
    fork, survivors = multiprocessing.get_context("fork"), 0
    import torch  # noqa: F401 once: each process is a fork of this one

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_of_tree(tree)
        for number, line in enumerate(tomllib.loads(LINES.read_text())["line"], 1):
            if asked.numbers and number not in asked.numbers:
                continue
            file = tree / line["file"]
            right = file.read_text()
            file.write_text(changed(right, line["old"], line["new"], file=line["file"]))
            answers = fork.SimpleQueue()
            process = fork.Process(target=tried, args=(tree, asked.first, asked.most, answers))
            process.start()
            count, noticed = answers.get()
            process.join()
            file.write_text(right)
            survivors += noticed is None
            sys.stdout.write(f"{number:2} {line['what']}: {count}, {noticed or 'NOT NOTICED'}\n")
            sys.stdout.flush()
    return min(1, survivors)


if __name__ == "__main__":
    sys.exit(main())
