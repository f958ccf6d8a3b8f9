"""JSON from an untrusted file, as plain data of bounded size and depth.

Brackets can nest deeper than the stack; a number can be infinite, or overflow every sum. Data that passes
here can be walked by a plain recursion, and its numbers can be added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

from rlinf_async.observe.read_files import read_regular

MAX_DEPTH = 100
MAX_JSON_BYTES = 4 << 20
MAX_NUMBER = 1e15
"""A larger number is no measurement: it comes from a damaged file, or from an overflow."""


class DamagedError(ValueError):
    """Content that no run has written; the message, in a few words, follows the name of a file."""


def read_json(text: str) -> Any:
    """Return the content of a JSON text; numbers that are not `finite` become None.

    Raises:
        DamagedError: it is not JSON, or nests too deeply.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedError("is cut off or damaged") from None
    return _measurable(content)


def read_json_file(path: Path, *, limit: int = MAX_JSON_BYTES) -> Any:
    """Return the content of a JSON file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: as in `read_files.read_regular`.
        DamagedError: as in `read_json`.
    """
    return read_json(read_regular(path, limit=limit).decode(errors="replace"))


def records_of(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the mappings among lines of JSON; damaged lines and other values are left out."""
    for line in lines:
        try:
            record = read_json(line)
        except DamagedError:
            continue
        if isinstance(record, dict):
            yield record


def finite(value: Any) -> TypeGuard[float]:
    """Return True for a number that can be a measurement: finite, and smaller than `MAX_NUMBER`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -MAX_NUMBER < value < MAX_NUMBER


def _measurable(tree: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise DamagedError("nests too deeply")
    if isinstance(tree, dict):
        return {name: _measurable(value, depth + 1) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_measurable(value, depth + 1) for value in tree]
    return None if isinstance(tree, int | float) and not isinstance(tree, bool) and not finite(tree) else tree
