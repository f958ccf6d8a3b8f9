"""Reads which RLinf is here, and if our classes can extend it.

RLinf's users have checkouts on `PYTHONPATH`, of which two different ones call themselves 0.3.0, and wheels.
So what RLinf is here is decided by what `import rlinf` finds and by what its modules define, never by the
metadata of an installed distribution. The sources are read rather than imported: importing RLinf's workers
takes seconds and needs the packages of simulators and models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from rlinf_async.extras import RLINF_REMEDY
from rlinf_async.hosts.rlinf.borrowed import BORROWED_NAMES, OBSERVED_FIELDS
from rlinf_async.hosts.rlinf.sources import Sources, sources_of

SUPPORTED_VERSIONS = "0.3.x, and the main branch that calls itself 0.4.0"
"""The RLinf versions with which this package was run."""


@dataclass(frozen=True)
class RLinfTree:
    """An RLinf, such as `import rlinf` gives in this process."""

    root: Path
    """The folder of the package."""
    version: str
    """The version that it gives itself, or `of unknown version`."""
    missing: tuple[str, ...]
    """Names that our classes need and it does not have, as `Class` or `Class.member`, with what needs it."""

    def __str__(self) -> str:
        return f"RLinf {self.version} in {self.root}"


def rlinf_tree() -> RLinfTree | None:
    """Return the RLinf that is here; None where `import rlinf` finds none. Nothing of it is imported."""
    sources = sources_of("rlinf")
    return None if sources is None else read_tree(sources.root)


@cache
def read_tree(root: Path) -> RLinfTree:
    """The RLinf whose package is in the folder `root`."""
    return RLinfTree(root=root, version=_version(root), missing=tuple(_missing(Sources(root))))


def check_rlinf() -> RLinfTree:
    """The RLinf that is here, if our classes can extend it.

    Raises:
        ValueError: there is none, or it lacks what they need, with the remedy.
    """
    tree = rlinf_tree()
    if tree is None:
        raise ValueError(f"RLinf cannot be imported: {RLINF_REMEDY}")
    if tree.missing:
        raise ValueError(why_unserved(tree))
    return tree


def why_unserved(tree: RLinfTree) -> str:
    """Why our classes cannot extend a tree, in one sentence."""
    return (
        f"{tree} is not one that rlinf-async can extend: it has no {', '.join(tree.missing)}; "
        f"supported are {SUPPORTED_VERSIONS}, and with async.mode=off RLinf runs by itself"
    )


def _missing(sources: Sources) -> Iterator[str]:
    for name, entry in BORROWED_NAMES.items():
        place = next((place for place in entry.places if sources.defines(place)), None)
        if place is None and not entry.optional:
            yield f"{name} (for {entry.use})"
        if place is None:
            continue
        members = sources.members(place) if entry.members else set()
        yield from (
            f"{name}.{member} (for {use})" for member, use in entry.members.items() if member not in members
        )
    for place in BORROWED_NAMES["EnvOutput"].places:
        fields = sources.keys_given(place, "prepare_observations")
        if fields and fields != set(OBSERVED_FIELDS):
            yield f"observations of {', '.join(OBSERVED_FIELDS)} alone (it has {', '.join(sorted(fields))})"


def _version(root: Path) -> str:
    """Return the version of the tree by the project file beside it, or by an installed distribution."""
    project = root.parent / "pyproject.toml"
    if project.is_file():
        match = re.search(r'^version\s*=\s*"([^"]+)"', project.read_text(), re.MULTILINE)
        if match:
            return match[1]
    try:
        package = distribution("rlinf")
    except PackageNotFoundError:
        return "of unknown version"
    # A checkout on PYTHONPATH hides an installed RLinf, whose version is another.
    same = Path(str(package.locate_file("rlinf"))).resolve() == root.resolve()
    return package.version if same else "of unknown version"
