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
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
        raise ValueError(f"{file} has {old!r} {count} times, not once; mend tests/wrong_lines.toml")
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
    sys.path.insert(0, str(tree))
    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] in ("rlinf_async", "tests")]:
        del sys.modules[name]
    options = ["-x", "-q", "-m", "not ray and not nightly", "-p", "no:cacheprovider", "-rfE"]
    status = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(int(status))


def try_lines(numbers: list[int]) -> int:
    """Say what notices each line; return the number of those that nothing notices."""
    table: dict[str, Any] = tomllib.loads((ROOT / "tests/wrong_lines.toml").read_text())
    for name in LOADED_ONCE:
        import_module(name)
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree, output = Path(folder, "tree"), Path(folder, "output")
        copy_of_tree(tree)
        for number, line in enumerate(table["line"], 1):
            if numbers and number not in numbers:
                continue
            file = tree / line["file"]
            right = file.read_text()
            file.write_text(changed(right, line["old"], line["new"], file=line["file"]))
            try:
                noticed = first_failure(tree, table["groups"][line["group"]], output)
            finally:
                file.write_text(right)
            survivors += not noticed
            sys.stdout.write(f"{number:2} {line['what']}: {noticed or 'NOT NOTICED'}\n")
            sys.stdout.flush()
    return survivors


if __name__ == "__main__":
    sys.exit(min(1, try_lines([int(argument) for argument in sys.argv[1:]])))
