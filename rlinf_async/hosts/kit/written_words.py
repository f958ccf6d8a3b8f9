"""The words in sources of a package and in references of a config: a key that is none of them is not read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

WORD, REFERENCE = re.compile(r"\w+"), re.compile(r"\$\{[^}]*\}")
"""A word; and a reference of one key to another, as `${env.seed}`."""


def words_of_references(unresolved: object) -> frozenset[str]:
    """Return every word of the references in a config with its interpolations: keys that others stand for."""
    return frozenset(word for text in REFERENCE.findall(str(unresolved)) for word in WORD.findall(text))


@cache
def words_of_module(name: str) -> frozenset[str]:
    """Return every word of the sources of a module and of the package that it is in; nothing is imported."""
    spec = find_spec(name.partition(".")[0]) if name else None
    if spec is None:
        return frozenset()
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    if not folders and spec.origin is not None and spec.origin.endswith(".py"):
        files = [Path(spec.origin)]
    return words_of(files)


def words_of(files: Iterable[Path]) -> frozenset[str]:
    """Return every word of these files."""
    return frozenset().union(*(WORD.findall(file.read_text(errors="replace")) for file in files))
