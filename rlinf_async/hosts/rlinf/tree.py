"""Which RLinf is here, and whether our classes can extend it.

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
from rlinf_async.hosts.rlinf.borrowed import BORROWED, OBSERVED
from rlinf_async.hosts.rlinf.sources import Sources, sources_of

SUPPORTED = "0.3.x, and the main branch that calls itself 0.4.0"
"""The RLinf versions with which this package was run."""


@dataclass(frozen=True)
class RLinfTree:
    """An RLinf, such as `import rlinf` gives in this process."""

    root: Path
    """The folder of the package."""
    version: str
    """What it calls itself, or `of unknown version`."""
    missing: tuple[str, ...]
    """What our classes need and it does not have, as `Class` or `Class.member`, with what needs it."""

    def __str__(self) -> str:
        return f"RLinf {self.version} in {self.root}"


def rlinf_tree() -> RLinfTree | None:
    """Which RLinf is here; None where `import rlinf` finds none. Nothing of it is imported."""
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
        raise ValueError(unserved(tree))
    return tree


def unserved(tree: RLinfTree) -> str:
    """Why our classes cannot extend a tree, in one sentence."""
    return (
        f"{tree} is not one that rlinf-async can extend: it has no {', '.join(tree.missing)}; "
        f"supported are {SUPPORTED}, and with async.mode=off RLinf runs by itself"
    )


def _missing(sources: Sources) -> Iterator[str]:
    for name, borrowed in BORROWED.items():
        place = next((place for place in borrowed.places if sources.defines(place)), None)
        if place is None and not borrowed.optional:
            yield f"{name} (for {borrowed.use})"
        if place is None:
            continue
        members = sources.members(place) if borrowed.members else set()
        yield from (
            f"{name}.{member} (for {use})"
            for member, use in borrowed.members.items()
            if member not in members
        )
    for place in BORROWED["EnvOutput"].places:
        shown = sources.keys_given(place, "prepare_observations")
        if shown and shown != set(OBSERVED):
            yield f"observations of {', '.join(OBSERVED)} alone (it has {', '.join(sorted(shown))})"


def _version(root: Path) -> str:
    """What the tree calls itself: in the project file beside it, or as an installed distribution."""
    project = root.parent / "pyproject.toml"
    if project.is_file():
        match = re.search(r'^version\s*=\s*"([^"]+)"', project.read_text(), re.MULTILINE)
        if match:
            return match[1]
    try:
        installed = distribution("rlinf")
    except PackageNotFoundError:
        return "of unknown version"
    same = Path(str(installed.locate_file("rlinf"))).resolve() == root.resolve()
    return installed.version if same else "of unknown version"
