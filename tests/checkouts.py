"""RLinf's source trees as its users have them, for tests that read its example configs or run its scripts.

RLINF_CHECKOUTS names the folder with the archives, by default `../shared/rlinf-checkouts` of the repository:
`rlinf-v0.3.tar.xz`, the tag v0.3, `rlinf-main.tar.xz`, the branch main of August 2026, and
`rlinf-pr1365.tar.xz`, that branch with pull request 1365, each with `rlinf/` and `examples/embodiment/`.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest

TREES = ("rlinf-v0.3", "rlinf-main", "rlinf-pr1365")
ARCHIVES = Path(os.environ.get("RLINF_CHECKOUTS", Path(__file__).parents[2] / "shared" / "rlinf-checkouts"))


def checkout(name: str) -> Path:
    """The root of a tree, unpacked once per machine; skips the test where there is no archive of it."""
    archive = ARCHIVES / f"{name}.tar.xz"
    if not archive.is_file():
        pytest.skip(f"there is no {archive}; RLINF_CHECKOUTS names the folder with RLinf's trees")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / f"rlinf-async-checkouts-{os.getuid()}" / f"{name}-{digest}"
    if not place.is_dir():
        _unpack(archive, place)
    return place / name


def _unpack(archive: Path, place: Path) -> None:
    """Beside its place first: of two processes that unpack at once, one finds that it is there already."""
    place.parent.mkdir(parents=True, exist_ok=True)
    unpacked = Path(tempfile.mkdtemp(dir=place.parent))
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    try:
        unpacked.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        shutil.rmtree(unpacked)
