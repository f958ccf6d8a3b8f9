"""The extension module that every process of a run loads, by a variable of RLinf's: ours, and the user's."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

EXT_MODULE = "RLINF_EXT_MODULE"
USERS_MODULE = "RLINF_ASYNC_EXT_MODULE"
"""The variable with the user's extension module, while ours is in RLinf's variable."""
OWN_MODULE = "rlinf_async.plugin"
WORD = re.compile(r"\w+")


def users_module() -> str:
    """Return the name of the user's extension module; empty without one."""
    name = os.environ.get(EXT_MODULE, "")
    return os.environ.get(USERS_MODULE, "") if name in ("", OWN_MODULE) else name


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
    return frozenset().union(*(WORD.findall(file.read_text(errors="replace")) for file in files))
