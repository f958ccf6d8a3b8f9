"""RLinf's trees, for tests that read its code or its example configs, or run its scripts.

RLINF_TREES names trees, as tests/sources.py says. What it does not name is put together where that can be:

* the example configs of each tree from an archive `TREE-configs.tar.xz` in the folder that RLINF_CONFIGS
  names, by default `../shared/rlinf-configs`;
* all else of v0.3 from the wheel `rlinf==0.3.0`, which has the same Python files, and scripts of our own with
  the calls of RLinf's.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from tests.sources import HOW, Source, made_once, places, unpack

VARIABLE = "RLINF_TREES"
HOLDS = ("rlinf", "examples/embodiment", "pyproject.toml")
SOURCES = tuple(
    Source(name=name, ref=commit, holds=HOLDS)
    for name, commit in {
        "rlinf-v0.3": "0505431899574619da86f551bad70b71e0ea2177",
        "rlinf-main": "a3816b596478dcd8a5c69a6ec1468c9519f77b5b",
        "rlinf-pr1365": "b8249189617c75d2987338ee1809024b81760632",
    }.items()
)
"""The tag v0.3, main of 22 August 2026, and main of 14 August with pull request 1365 merged into it."""
TREES = tuple(source.name for source in SOURCES)
RELEASED = TREES[0]
"""The tree that the wheel is made of."""
CONFIGS = Path(os.environ.get("RLINF_CONFIGS", Path(__file__).parents[2] / "shared" / "rlinf-configs"))
EMBODIED = Path("examples") / "embodiment"
RUNS = Path(__file__).with_name("runs")
SCRIPTS = {"train_embodied_agent.py": RUNS / "entry_script.py", "train_async.py": RUNS / "async_script.py"}
"""Scripts of ours for the names that RLinf's have."""


@cache
def named() -> dict[str, Path]:
    """The trees that RLINF_TREES names."""
    return places(VARIABLE, SOURCES)


def others() -> tuple[str, ...]:
    """The names of trees that are none of `TREES`: what else somebody wants to have looked at."""
    return tuple(sorted(set(named()) - set(TREES)))


def package(name: str) -> Path:
    """The folder of a tree's package `rlinf`; skips the test where there is none."""
    if name in named():
        return named()[name] / "rlinf"
    if name == RELEASED and (root := _installed()):
        return root
    pytest.skip(f"{name} is left out: {VARIABLE} names no such tree ({HOW})")


def configs(name: str) -> Path:
    """The root of a tree with its example configs at the least; skips the test where there are none."""
    if name in named():
        return named()[name]
    archive = CONFIGS / f"{name}-configs.tar.xz"
    if archive.is_file():
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:12]
        return made_once(f"{name}-configs-{digest}", lambda place: unpack(archive, place)) / name
    pytest.skip(
        f"the configs of {name} are left out: there is no {archive}, nor a tree in {VARIABLE} ({HOW})"
    )


def checkout(name: str) -> Path:
    """The root of a tree, as RLinf's users have it; skips the test where it is not here, nor can be made."""
    if name in named():
        return named()[name]
    code, examples = package(name), configs(name)
    release = distribution("rlinf").version
    text = "".join(script.read_text() for script in SCRIPTS.values())
    digest = hashlib.sha256(f"{code}{examples}{text}".encode()).hexdigest()[:12]

    def fill(place: Path) -> None:
        shutil.copytree(code, place / "rlinf", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(examples / EMBODIED, place / EMBODIED)
        for theirs, ours in SCRIPTS.items():
            shutil.copy(ours, place / EMBODIED / theirs)
        (place / "pyproject.toml").write_text(f'[project]\nname = "rlinf"\nversion = "{release}"\n')

    return made_once(f"{name}-{release}-{digest}", fill)


def _installed() -> Path | None:
    """The package of an installed RLinf 0.3.0."""
    try:
        wheel = distribution("rlinf")
    except PackageNotFoundError:
        return None
    return Path(str(wheel.locate_file("rlinf"))) if wheel.version == "0.3.0" else None


def at_hand(find: Callable[[str], Path] = checkout) -> dict[str, Path]:
    """What `find` finds of the trees, by name: the root of each that is here or can be made."""
    found = {}
    for name in TREES:
        with suppress(pytest.skip.Exception):
            found[name] = find(name)
    return found


if __name__ == "__main__":
    sys.stdout.write("".join(f"{name}={root}\n" for name, root in at_hand().items()))
