"""Reads files in an untrusted directory (see `files`), and JSON in them: as plain data of bounded size and
depth, and as dataclasses.

Brackets can nest deeper than the stack; a number can be infinite, or overflow every sum. Data that passes
here can be walked by a plain recursion, and its numbers can be added.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, BinaryIO, Literal, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from rlinf_async.observe.files import open_regular

Event = TypeVar("Event")

MAX_NAMES = 10_000
"""The most names that are read of one directory; a run has some dozens."""
MAX_DEPTH = 100
MAX_JSON_BYTES = 4 << 20
MAX_NUMBER = 1e15
"""A larger number is no measurement: it comes from a damaged file, or from an overflow."""


class DamagedError(ValueError):
    """Content that no run has written; the message, in a few words, follows the name of a file."""


def read_regular(path: Path, *, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it is a link, not a regular file, too large, or cannot be read; `strerror` gives the reason.
    """
    with opened_to_read(path, limit=limit) as (reader, size):
        # A file that grows is read up to its size when it was opened. `read` reserves the memory that it is
        # asked for, so ask for no more than that.
        return reader.read(min(limit, size) + 1)[:size]


def lines_in(path: Path, *, limit: int, longest: int) -> Iterator[bytes]:
    """Yield the lines of a file of at most `limit` bytes, without line ends; lines longer than `longest`
    bytes are left out. At most two lines of that length are in memory.

    Raises:
        OSError: as `read_regular`.
    """
    with opened_to_read(path, limit=limit) as (reader, size):
        cut = False
        # Up to the first size: a file that grows while it is read would have no end.
        while reader.tell() < size and (line := reader.readline(longest + 1)):
            whole = line.endswith(b"\n") or len(line) <= longest
            if whole and not cut:
                yield line.rstrip(b"\n")
            cut = not whole


@contextmanager
def opened_to_read(path: Path, *, limit: int) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file of at most `limit` bytes; yield a reader, and the size in bytes at opening.

    Raises:
        OSError: as `read_regular`.
    """
    with os.fdopen(open_regular(path), "rb") as reader:
        size = os.fstat(reader.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"it has more than {limit:,} bytes", str(path))
        yield reader, size


def read_named(path: Path, *, limit: int) -> bytes:
    """`read_regular` for a file that the user has named; links are followed.

    Raises:
        OSError: as `read_regular`.
    """
    return read_regular(Path(os.path.realpath(path)), limit=limit)


def names_in(directory: Path, suffix: str) -> list[Path]:
    """Return the regular files in a directory that end in `suffix`, sorted; none if it is no directory, or a
    link.

    Raises:
        OSError: the directory cannot be read, or has more than `MAX_NAMES` names.
    """
    if directory.is_symlink() or not directory.is_dir():
        return []
    paths: list[Path] = []
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number == MAX_NAMES:
                raise OSError(errno.EFBIG, f"it has more than {MAX_NAMES:,} names", str(directory))
            if entry.name.endswith(suffix) and entry.is_file(follow_symlinks=False):
                paths.append(Path(entry.path))
    return sorted(paths)


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
        OSError: as in `read_regular`.
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


def typed(kind: type[Event], record: dict[str, Any]) -> Event | None:
    """Return a dataclass of plain data; None if a field without a default is missing or has a wrong type.

    Other facts of a wrong type get their defaults, and facts that `kind` does not have are left out.
    """
    hashable: Any = kind
    hints = _hints(hashable)
    facts = {name: fact for name, fact in record.items() if name in hints and _fits(fact, hints[name])}
    try:
        return kind(**facts)
    except TypeError:
        return None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is UnionType:
        return any(_fits(value, each) for each in get_args(hint))
    if hint is float:
        return finite(value)
    return is_whole(value) if hint is int else isinstance(value, get_origin(hint) or hint)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and finite(value)
