"""Names that users write, and the nearest known name where they misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: object, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like `name`, if one is at least `cutoff` like it (difflib's ratio)."""
    return next(iter(difflib.get_close_matches(str(name), list(names), n=1, cutoff=cutoff)), None)


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """`; did you mean 'the nearest'?`, or nothing where no known name is near."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""
