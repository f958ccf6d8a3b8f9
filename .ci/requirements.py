"""Prints the dependencies of pyproject.toml's extras, one requirement a line, for the Makefile's pip.

    requirements.py [--no-deps] EXTRA...

Some packages declare a stack that this project does not need, or that conflicts with its own. They are
installed with `pip install --no-deps`: the flag prints exactly those, its absence prints all the others.
"""

import re
import sys
import tomllib
from pathlib import Path

NO_DEPS = {"rlinf", "hf-libero", "robosuite", "bddl", "mani_skill", "sapien"}


def name(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement).group().lower()


def requirements(project: dict, extras: list[str], *, no_deps: bool) -> list[str]:
    """The requirements of the named extras; with the project's own unless `no_deps`."""
    wanted = [] if no_deps else list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return sorted({each for each in wanted if (name(each) in NO_DEPS) == no_deps})


if __name__ == "__main__":
    pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    extras = [each for each in sys.argv[1:] if each != "--no-deps"]
    lines = requirements(pyproject["project"], extras, no_deps="--no-deps" in sys.argv)
    sys.stdout.write("\n".join(lines) + "\n")
