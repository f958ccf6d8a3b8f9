"""Finds the RLinf that `import rlinf` would load, and checks whether our classes can extend it.

RLinf's users have wheels and checkouts on `PYTHONPATH`, and two different checkouts call themselves 0.3.0. So
the check looks at the definitions in the modules that `import rlinf` finds, never at the metadata of an
installed distribution. The sources are read rather than imported: importing RLinf's workers takes seconds and
needs the packages of simulators and models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from rlinf_async import __version__
from rlinf_async.extras import RLINF_REMEDY
from rlinf_async.hosts.rlinf.borrowed import BORROWED_NAMES, OBSERVED_FIELDS
from rlinf_async.hosts.rlinf.sources import Sources, sources_of

SUPPORTED_VERSIONS = "0.3.x, and the main branch that calls itself 0.4.0"
"""The RLinf versions that this package was run with."""


@dataclass(frozen=True)
class RLinfTree:
    """An RLinf package: its folder, its version and the names that it lacks."""

    root: Path
    """The folder of the package."""
    version: str
    """The version by its project file or distribution, or `of unknown version`."""
    missing: tuple[str, ...]
    """Names that our classes need and this RLinf lacks, as `Class` or `Class.member`, each with its use."""

    def __str__(self) -> str:
        return f"RLinf {self.version} in {self.root}"


def rlinf_tree() -> RLinfTree | None:
    """Return the RLinf that `import rlinf` would load, without importing it; None if there is none."""
    sources = sources_of("rlinf")
    return read_tree(sources.root) if sources.is_here else None


@cache
def read_tree(root: Path) -> RLinfTree:
    """Return the RLinf in the package folder `root`."""
    return RLinfTree(root=root, version=_version(root), missing=tuple(_missing(Sources(root))))


def is_defined(name: str) -> bool:
    """Return True if the RLinf that `import rlinf` would load defines a name of `BORROWED_NAMES`."""
    return any(map(sources_of("rlinf").defines, BORROWED_NAMES[name].places))


def dotted_name(name: str) -> str:
    """Return the dotted name of a name of `BORROWED_NAMES` in this RLinf; without one, that of the newest
    version.
    """
    places = BORROWED_NAMES[name].places
    here = filter(sources_of("rlinf").defines, places if len(places) > 1 else ())
    return next(here, places[0]).replace(":", ".")


def supported_rlinf() -> RLinfTree:
    """Return the RLinf that `import rlinf` would load, if our classes can extend it.

    Raises:
        ValueError: there is none, or it lacks names that our classes need; with the remedy.
    """
    tree = rlinf_tree()
    if tree is None:
        raise ValueError(f"RLinf cannot be imported: {RLINF_REMEDY}")
    if tree.missing:
        raise ValueError(why_unserved(tree))
    return tree


def why_unserved(tree: RLinfTree) -> str:
    """Return a sentence on why our classes cannot extend `tree`."""
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
    """Return the version in the project file beside the package, or of the installed distribution."""
    project = root.parent / "pyproject.toml"
    if project.is_file():
        match = re.search(r'^version\s*=\s*"([^"]+)"', project.read_text(errors="replace"), re.MULTILINE)
        if match:
            return match[1]
    try:
        package = distribution("rlinf")
    except PackageNotFoundError:
        return "of unknown version"
    # A checkout on PYTHONPATH hides an installed RLinf, which may have another version.
    same = Path(str(package.locate_file("rlinf"))).resolve() == root.resolve()
    return package.version if same else "of unknown version"


def versions() -> dict[str, str]:
    """Return the versions of this package, of the RLinf that `import rlinf` finds, and of packages that both
    need.
    """
    tree = rlinf_tree()
    own = {"rlinf-async": __version__, "rlinf": tree.version if tree else "unknown"}
    return {**own, **{name: version(name) for name in ("ray", "torch")}}
