"""`python -m tests.wrong_lines [NUMBER...]`: which wrong lines of `wrong_lines.toml` do unit tests notice?

Each line is made alone, in a copy of the package, and the tests of its group are run there until one fails.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINES = Path(__file__).with_suffix(".toml")
LOADED_ONCE = ("torch", "pytest", "ray", "hydra", "rlinf.algorithms.registry")
"""What tests import and no line changes: a test process is a fork of one that has it already."""
LIMIT_S = 900.0
NOTICED_BY_TIME = "the time limit"


def changed(text: str, old: str, new: str, *, file: str) -> str:
    """Return `text` with the one place `old` made `new`.

    Raises:
        ValueError: `old` is not there, or more than once.
    """
    if (count := text.count(old)) != 1:
        raise ValueError(f"{file} has {old!r} {count} times, not once; mend the table of wrong lines")
    return text.replace(old, new)


def copy_of_tree(target: Path) -> None:
    """Copy what is tracked, as tests look for more than the package."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (source := ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def first_failure(tree: Path, tests: list[str], output: Path) -> str:
    """Return the test that fails first in `tree`; "" if all pass."""
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(tree, tests, output))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
        return NOTICED_BY_TIME
    if process.exitcode == 0:
        return ""
    failed = [line for line in output.read_text().splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if not failed:
        raise RuntimeError(f"the tests ended with {process.exitcode} and name none that failed: {output}")
    return failed[0].split()[1].partition("::")[2] or failed[0]


def _run_tests(tree: Path, tests: list[str], output: Path) -> None:
    import pytest

    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    load_from(tree)
    options = ["-x", "-q", "-m", "not ray and not nightly", "-p", "no:cacheprovider", "-rfE"]
    status = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(int(status))


def load_from(tree: Path) -> None:
    """Have this process, a fork, load the package and its tests from `tree`."""
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rlinf_async", "tests")]:
        del sys.modules[name]


def each_alone(
    lines: Path, numbers: Sequence[int], notice: Callable[[Path, dict[str, Any]], tuple[bool, str]]
) -> int:
    """Make each line of a table alone in a copy of what is tracked, and say what `notice` returns.

    Args:
        lines: the table.
        numbers: the lines that are tried; none: all.
        notice: returns, of the folder of the copy and the line, whether it was noticed, and a remark.

    Returns:
        The number of lines that were not noticed.
    """
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_of_tree(tree)
        for number, line in enumerate(tomllib.loads(lines.read_text())["line"], 1):
            if numbers and number not in numbers:
                continue
            file = tree / line["file"]
            right = file.read_text()
            file.write_text(changed(right, line["old"], line["new"], file=line["file"]))
            try:
                noticed, remark = notice(tree, line)
            finally:
                file.write_text(right)
            survivors += not noticed
            sys.stdout.write(f"{number:2} {line['what']}: {remark}\n")
            sys.stdout.flush()
    return survivors


def try_lines(numbers: list[int]) -> int:
    """Say which test notices each line; return the number of those that none notices."""
    groups: dict[str, list[str]] = tomllib.loads(LINES.read_text())["groups"]
    for name in LOADED_ONCE:
        import_module(name)
    with tempfile.TemporaryDirectory() as folder:

        def notice(tree: Path, line: dict[str, Any]) -> tuple[bool, str]:
            failure = first_failure(tree, groups[line["group"]], Path(folder, "output"))
            return bool(failure), failure or "NOT NOTICED"

        return each_alone(LINES, numbers, notice)


if __name__ == "__main__":
    sys.exit(min(1, try_lines([int(argument) for argument in sys.argv[1:]])))
