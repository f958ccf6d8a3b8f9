"""Third-party model sources, unpacked from the archives in the folder that `VLA_SOURCES` names.

`python -m tests.vla.sources PACKAGES` gives the transformers in folder PACKAGES the files of openpi.
"""

import os
import shutil
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

FOLDER = "VLA_SOURCES"
MISSING = f"{FOLDER} names no folder with {{}}-*.tar.xz: see CONTRIBUTING.md"


def source(name: str) -> Path | None:
    """The unpacked tree of `name`; None where there is no archive of it.

    Unpacked once per archive, into the temporary directory, by whichever process is first.
    """
    archives = sorted(Path(os.environ.get(FOLDER, "/nowhere")).glob(f"{name}-*.tar.xz"))
    if not archives:
        return None
    place = (
        Path(tempfile.gettempdir()) / f"rlinf-async-vla-{os.getuid()}" / archives[-1].name.split(".tar")[0]
    )
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
            with tarfile.open(archives[-1]) as archive:
                archive.extractall(scratch, filter="data")
            _move(Path(scratch) / name, place)
    return place


def why_missing(package: str, archive: str) -> str | None:
    """Why a model cannot be built here, in words: it is of `package`, and of an `archive` if one is named."""
    if find_spec(package) is None:
        return f"{package} is not installed: make test-vla"
    return MISSING.format(archive) if archive and not source(archive) else None


def _move(made: Path, place: Path) -> None:
    try:
        made.rename(place)
    except OSError:  # another process was faster
        if not place.exists():
            raise


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
        sys.exit(MISSING.format("openpi"))
    replaced = place / "src" / "openpi" / "models_pytorch" / "transformers_replace"
    shutil.copytree(replaced, packages / "transformers", dirs_exist_ok=True)


if __name__ == "__main__":
    replace_transformers(Path(sys.argv[1]))
