"""Checkpoint folders that are whole or absent: written aside, listed, renamed, and found again.

A checkpoint `global_step_N` is written into `.global_step_N.writing`. When all of it is there, a list of
its files, `complete.json`, is added, everything is flushed to the disk, and one rename gives it its name. So
a folder of that name is whole, unless somebody has changed it since, which the list tells.

Only the standard library is used: whoever starts a run again looks here, too, without torch or Ray.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

COMPLETE = "complete.json"
FORMAT = 1
SMALL_BYTES = 1 << 20
"""Files of up to this size are listed with a digest of what they hold; of larger ones the size has to do."""

NAMED = re.compile(r"global_step_(\d+)")
ASIDE = re.compile(r"\.global_step_\d+\.(writing|replaced|removing)")


@dataclass(frozen=True)
class Newest:
    """The newest whole checkpoint of several."""

    folder: Path | None
    step: int
    skipped: tuple[str, ...]
    """Sentences about newer ones that are not whole."""


def step_of(folder: Path) -> int | None:
    """The step after which a checkpoint was written, by its name; None if it is not that of one."""
    match = NAMED.fullmatch(folder.name)
    return int(match[1]) if match else None


def written_at(folder: Path) -> float:
    """When a checkpoint was written, by its list; one whose list cannot be read is as old as that file."""
    path = folder / COMPLETE
    try:
        return float(json.loads(path.read_text())["time"])
    except (OSError, ValueError, KeyError, TypeError):
        return path.stat().st_mtime


@contextmanager
def written_aside(
    folder: Path, facts: Mapping[str, Any], *, before: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """A folder to write a checkpoint into, which gets the name `folder` when the block ends without an error.

    `facts`, plain data about the run, are kept in the list of files. `before` is called when everything is
    written, just before the folder gets its name. After an error nothing is left of it.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    aside = _beside(folder, "writing")
    try:
        _remove(aside)
        aside.mkdir(parents=True)
        yield aside
        _complete(aside, facts, step=step_of(folder))
        before()
        _move(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def problem_of(folder: Path) -> str | None:
    """Why `folder` is not a whole checkpoint, in a few words; None if it is one."""
    try:
        listed = json.loads((folder / COMPLETE).read_text())
        files = dict(listed["files"])
    except FileNotFoundError:
        return f"it has no {COMPLETE}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"its {COMPLETE} cannot be read"
    if listed.get("format") != FORMAT:
        return f"its {COMPLETE} is of format {listed.get('format')}, and not {FORMAT}"
    return next((wrong for name in files if (wrong := _problem_of_file(folder, name, files[name]))), None)


def find_newest(parent: Path) -> Newest:
    """The whole checkpoint in `parent` that was written last, by what it says of itself.

    Others, such as those of a framework without a list of files, are not looked at; a list that does not
    agree with the files beside it makes a sentence in `skipped`.
    """
    skipped: list[str] = []
    for folder in sorted(_listed(parent), key=_age, reverse=True):
        problem = problem_of(folder)
        if problem is None:
            return Newest(folder, step_of(folder) or 0, tuple(skipped))
        skipped.append(f"{folder} is not whole and is not used: {problem}")
    return Newest(None, 0, tuple(skipped))


def prune(parent: Path, keep: int | Literal["all"]) -> list[Path]:
    """Remove the oldest whole checkpoints, so that `keep` are left; what was removed.

    What is not whole, or not written by this package, is left to whoever wants to look at it.
    """
    if keep == "all":
        return []
    whole = [folder for folder in sorted(_listed(parent), key=_age) if problem_of(folder) is None]
    removed = whole[: max(0, len(whole) - keep)]
    for folder in removed:
        _remove(folder)
    return removed


def tidy(parent: Path) -> None:
    """Remove what a process that was killed has left half written, half removed or half replaced.

    Only for who alone writes there.
    """
    for aside in sorted(parent.iterdir()) if parent.is_dir() else ():
        match = ASIDE.fullmatch(aside.name)
        if match is None:
            continue
        folder = parent / aside.name[1:].rpartition(".")[0]
        if match[1] == "replaced" and not folder.exists():
            aside.rename(folder)
        else:
            shutil.rmtree(aside, ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Give a file this content in one move, on the disk when it returns."""
    half = path.with_name(f".{path.name}.half")
    with half.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
    _sync(path.parent)


def _complete(folder: Path, facts: Mapping[str, Any], *, step: int | None) -> None:
    """Flush every file of a checkpoint to the disk, then list them."""
    files = {}
    for directory, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(directory, name)
            _sync(path)
            files[str(path.relative_to(folder))] = _entry(path)
        _sync(Path(directory))
    listed = {"format": FORMAT, "step": step, "time": time.time(), **facts, "files": files}
    replace_text(folder / COMPLETE, json.dumps(listed, indent=2) + "\n")


def _move(aside: Path, folder: Path) -> None:
    """Give the whole checkpoint its name; one that has it already goes away first."""
    replaced = _beside(folder, "replaced")
    if folder.exists():
        _remove(replaced)
        folder.rename(replaced)
    aside.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _remove(folder: Path) -> None:
    """In two steps, so that nobody takes what is half removed for a checkpoint."""
    if NAMED.fullmatch(folder.name):
        folder = folder.rename(_beside(folder, "removing"))
    if folder.exists():
        shutil.rmtree(folder)


def _beside(folder: Path, what: str) -> Path:
    return folder.with_name(f".{folder.name}.{what}")


def _listed(parent: Path) -> list[Path]:
    folders = parent.iterdir() if parent.is_dir() else ()
    return [folder for folder in folders if step_of(folder) is not None and (folder / COMPLETE).is_file()]


def _age(folder: Path) -> tuple[float, int]:
    return written_at(folder), step_of(folder) or 0


def _entry(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"bytes": size, "sha256": _digest(path) if size <= SMALL_BYTES else None}


def _problem_of_file(folder: Path, name: str, entry: Mapping[str, Any]) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{name} is missing"
    size, expected = path.stat().st_size, entry["bytes"]
    if size != expected:
        return f"{name} has {size} bytes in the place of {expected}"
    if entry.get("sha256") is not None and _digest(path) != entry["sha256"]:
        return f"{name} has other content than it was written with"
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
