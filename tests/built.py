"""Distributions of this repository, and environments that hold no more than some of them bring."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from collections.abc import Collection, Iterable
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement


def build(folder: Path, pattern: str, *, source: Path, kind: str) -> Path:
    """A distribution of the given kind, from the tree at `source`, in `folder`."""
    pytest.importorskip("hatchling", reason="builds with it")
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob(pattern)
    return built


def install(wheel: Path, folder: Path) -> Path:
    """A new environment in `folder` with the wheel and nothing else; its site-packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", f"--python={folder / 'bin' / 'python'}"]
    options = ["--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "install", *options, str(wheel)], check=True, cwd=folder)
    (site,) = folder.glob("lib/python*/site-packages")
    return site


def requirements(wheel: Path, extras: Iterable[str]) -> list[Requirement]:
    """What the wheel's metadata asks for, with those extras."""
    archive = ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = HeaderParser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    return list(_wanted(lines, extras))


def link(wanted: Iterable[Requirement], site: Path, *, no_deps: Collection[str] = ()) -> list[str]:
    """Put what `wanted` brings, with all that it asks for in turn, into a site-packages by links to what is
    installed here; the names of what is not installed here. What packages of `no_deps` ask for is left out.
    """
    here = {normal(each.metadata["Name"]): each for each in distributions()}
    queue, seen, absent = list(wanted), set(), []
    while queue:
        requirement = queue.pop()
        key = (normal(requirement.name), *sorted(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        if key[0] not in here:
            absent.append(key[0])
            continue
        found = here[key[0]]
        _link(found, site)
        if key[0] not in no_deps:
            queue += _wanted(found.requires or [], requirement.extras)
    return absent


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _wanted(lines: Iterable[str], extras: Iterable[str]) -> Iterable[Requirement]:
    for requirement in map(Requirement, lines):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _link(distribution: Distribution, site: Path) -> None:
    for top in {Path(str(file)).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        source = Path(str(distribution.locate_file(top)))
        if source.exists() and not (site / top).exists():
            (site / top).symlink_to(source)
