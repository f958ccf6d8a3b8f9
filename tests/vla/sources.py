"""Sources of models, which no package index has: trees that `VLA_SOURCES` names, as tests/sources.py says.

`python -m tests.vla.sources PACKAGES` gives the transformers in folder PACKAGES the files of openpi.
"""

import shutil
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.sources import HOW, Source, places

VARIABLE = "VLA_SOURCES"
MISSING = f"{{}} is left out: {VARIABLE} names no such tree ({HOW})"
SOURCES = (
    Source(name="openpi", ref="15a9616a00943ada6c20a0f158e3adb39df2ccac", holds=("src",)),
    Source(name="openvla-oft", ref="213c5ff8d6e9673885d7e4dd6f2ce73b5d8a45db", holds=("prismatic",)),
    Source(name="isaac-gr00t", ref="n1.5-release", holds=("gr00t",)),
    Source(name="dexbotic", ref="9bed6705", holds=("dexbotic",)),
    Source(name="starvla", ref="a3ff9b84", holds=("starVLA", "deployment")),
    Source(name="verl-vla", ref="8a18e3fae431ca456395b3589bfe848d569503fe", holds=("src",)),
)


@cache
def _named() -> dict[str, Path]:
    return places(VARIABLE, SOURCES)


def source(name: str) -> Path | None:
    """The tree of `name`; None where none is named."""
    return _named().get(name)


def why_missing(package: str, tree: str | None) -> str | None:
    """Why a model cannot be built here, in words: it is of `package`, and of a `tree` if one is named."""
    if find_spec(package) is None:
        return f"{package} is not installed: make test-vla"
    return MISSING.format(tree) if tree and not source(tree) else None


def on_path(name: str, inside: str = "") -> Path | None:
    """Put the tree of `name`, or the folder `inside` it, on the import path; None where it is missing."""
    place = source(name)
    if place is not None and str(place / inside) not in sys.path:
        sys.path.append(str(place / inside))
    return place


def replace_transformers(packages: Path) -> None:
    """What openpi's own installation asks for: its Gemma, PaliGemma and SigLIP in the place of others."""
    place = source("openpi")
    if place is None:
        sys.stdout.write(f"{MISSING.format('openpi')}\n")
        return
    replaced = place / "src" / "openpi" / "models_pytorch" / "transformers_replace"
    shutil.copytree(replaced, packages / "transformers", dirs_exist_ok=True)


if __name__ == "__main__":
    replace_transformers(Path(sys.argv[1]))
