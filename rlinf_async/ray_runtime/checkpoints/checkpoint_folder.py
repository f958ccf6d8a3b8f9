"""Checkpoint folders that are whole or absent: written aside, listed, renamed, and found again.

A checkpoint `global_step_N` is written into `.global_step_N.writing`. When all of it is there, a list of
its files, `complete.json`, is added, everything is flushed to the disk, and one rename gives it its name. So
a folder of that name is whole, unless it was changed since, which the list tells: it has a digest of every
byte, its own included.

Each list has a number, one more than the highest in the folder before it, so that it is known which of two
was written later. The clock of a machine may go back, jump ahead or stand still, and is not asked.

Only the standard library is used: `rlinf-async supervise` looks here, too, without torch or Ray.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from rlinf_async.observe.files import make_directory, read_regular, sync, write_whole

LIST_FILE = "complete.json"
LIST_FORMAT = 2
MAX_SEQUENCE = 1 << 53
MAX_LIST_BYTES = 64 << 20
DIGEST_NAME = "sha256"
"""The fastest digest of Python's on processors of today, which have instructions for it."""
READER_THREADS = 8
"""Threads that read files of one checkpoint at once; the digest is taken without the interpreter's lock."""

CHECKPOINT_NAME = re.compile(r"global_step_(\d+)")
UNFINISHED_NAME = re.compile(r"\.global_step_\d+\.(writing|replaced|removing)")


@dataclass(frozen=True)
class Newest:
    """The newest whole checkpoint of several."""

    folder: Path | None
    step: int
    skipped: tuple[str, ...]
    """Sentences about newer ones that are not whole."""


def step_of(folder: Path) -> int | None:
    """The step after which a checkpoint was written, by its name; None if it is not that of one."""
    match = CHECKPOINT_NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def newest_sequence(parent: Path) -> int:
    """The number of the checkpoint in `parent` that was written last, whole or not; 0 if there is none."""
    return max((sequence_of(folder) for folder in _folders_with_list(parent)), default=0)


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
    aside = _sibling(folder, "writing")
    try:
        _remove(aside)
        make_directory(folder.parent, private=False)
        aside.mkdir()
        yield aside
        _complete(aside, facts, step=step_of(folder), sequence=newest_sequence(folder.parent) + 1)
        before()
        # The rename is the moment at which the checkpoint exists: nothing may be written into it afterwards.
        _move(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def problem_of(folder: Path, *, digests: bool = True) -> str | None:
    """Why `folder` is not a whole checkpoint, in a few words; None if it is one.

    Without `digests` only the names and sizes of its files are looked at, and none of them is read.
    """
    file_list = _read_list(folder)
    if isinstance(file_list, str):
        return file_list
    return next(
        (wrong for name, entry in file_list.files.items() if (wrong := entry.problem(folder, name, digests))),
        None,
    )


def find_newest(parent: Path, *, digests: bool = True) -> Newest:
    """Return the whole checkpoint in `parent` that was written last, by the number in its list.

    Checkpoints without a list of files, such as those of a framework, are not looked at; a list that does not
    agree with the files in its folder makes a sentence in `skipped`. `digests` as in `problem_of`.
    """
    problems: list[str] = []
    for folder in sorted(_folders_with_list(parent), key=_age, reverse=True):
        problem = problem_of(folder, digests=digests)
        if problem is None:
            return Newest(folder, step_of(folder) or 0, tuple(problems))
        problems.append(f"{folder} is not whole and is not used: {problem}")
    return Newest(None, 0, tuple(problems))


def prune(parent: Path, keep: int | Literal["all"], *, written: Container[Path] = ()) -> list[Path]:
    """Remove the oldest whole checkpoints, so that `keep` are left, and return the removed ones.

    A checkpoint that is not whole, or not written by this package, is left for a person to look at. The
    checkpoints to keep are read first, as none is removed before others are known to be whole; those that
    this process has `written` itself are trusted.

    Raises:
        OSError: one cannot be removed.
    """
    if keep == "all":
        return []
    count, old_folders = 0, []
    for folder in sorted(_folders_with_list(parent), key=_age, reverse=True):
        enough = count >= max(1, keep)
        if problem_of(folder, digests=not enough and folder not in written) is None:
            count += 1
            old_folders += [folder] if enough else []
    # The oldest first: killed in between, this leaves the newer ones.
    for folder in reversed(old_folders):
        _remove(folder)
    return old_folders[::-1]


def tidy(parent: Path) -> None:
    """Remove what a process that was killed has left half written, half removed or half replaced.

    Only for who alone writes there.
    """
    for aside in sorted(parent.iterdir()) if parent.is_dir() else ():
        match = UNFINISHED_NAME.fullmatch(aside.name)
        if match is None:
            continue
        folder = parent / aside.name[1:].rpartition(".")[0]
        if match[1] == "replaced" and not folder.exists():
            aside.rename(folder)
        else:
            shutil.rmtree(aside, ignore_errors=True)


@dataclass(frozen=True)
class _Entry:
    """The facts that a list gives of a file."""

    bytes: int
    digest: str

    @classmethod
    def read(cls, name: object, entry: object) -> _Entry | None:
        """Return the entry of a file inside of the checkpoint, or None if `entry` is none."""
        if not isinstance(name, str) or not isinstance(entry, dict):
            return None
        size, digest = entry.get("bytes"), entry.get(DIGEST_NAME)
        inside = name and not Path(name).is_absolute() and ".." not in Path(name).parts and "\0" not in name
        if not inside or not is_count(size) or not isinstance(digest, str):
            return None
        return cls(size, digest)

    def problem(self, folder: Path, name: str, digests: bool) -> str | None:
        """Why the file `name` is another one, in a few words; None if it is this one."""
        path = folder / name
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                return f"{name} is no file"
            if status.st_size != self.bytes:
                return f"{name} has {status.st_size} bytes in the place of {self.bytes}"
            if digests and _digest(path) != self.digest:
                return f"{name} has other content than it was written with"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        return None


@dataclass(frozen=True)
class _List:
    sequence: int
    files: dict[str, _Entry]


def _read_list(folder: Path) -> _List | str:
    """The list of a checkpoint; a few words if there is none that a run could have written."""
    path = folder / LIST_FILE
    damage = f"its {LIST_FILE} is not as it was written"
    try:
        content = read_regular(path, limit=MAX_LIST_BYTES)
        list_facts = json.loads(content)
    except FileNotFoundError:
        return f"it has no {LIST_FILE}"
    except OSError as error:
        return f"its {LIST_FILE} cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        return damage
    if not isinstance(list_facts, dict) or not isinstance(list_facts.get("files"), dict):
        return damage
    if list_facts.get("format") != LIST_FORMAT:
        return f"its {LIST_FILE} is of format {list_facts.get('format')!r:.40}, and not {LIST_FORMAT}"
    files = {name: _Entry.read(name, entry) for name, entry in list_facts["files"].items()}
    whole = {name: entry for name, entry in files.items() if entry is not None}
    if len(whole) < len(files) or not files:
        return damage
    sequence = list_facts.get("sequence")
    if not is_count(sequence) or not 0 < sequence <= MAX_SEQUENCE:
        return damage
    if content != _with_seal(list_facts).encode():
        return damage
    return _List(sequence, whole)


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _with_seal(facts_and_files: Mapping[str, Any]) -> str:
    """The text of a list, whose last entry is a digest of the others."""
    others = {name: fact for name, fact in facts_and_files.items() if name != DIGEST_NAME}
    # Of the entries in their order, which JSON keeps: a list that is read again gives the same text.
    seal = hashlib.new(DIGEST_NAME, json.dumps(others).encode()).hexdigest()
    return json.dumps({**others, DIGEST_NAME: seal}, indent=2) + "\n"


def _complete(folder: Path, facts: Mapping[str, Any], *, step: int | None, sequence: int) -> None:
    """Flush every file of a checkpoint to the disk, then list them."""
    paths = []
    for directory, _, names in os.walk(folder):
        paths += [Path(directory, name) for name in sorted(names)]
    with ThreadPoolExecutor(min(READER_THREADS, os.cpu_count() or 1)) as readers:
        entries = list(readers.map(_flush, paths))
    for directory, _, _ in os.walk(folder, topdown=False):
        sync(Path(directory))
    files = {str(path.relative_to(folder)): entry for path, entry in zip(paths, entries, strict=True)}
    facts_of_list = {"format": LIST_FORMAT, "step": step, "sequence": sequence, "time": time.time(), **facts}
    # Last, when all else is on the disk: a folder with a list is whole.
    text = _with_seal({**facts_of_list, "files": files})
    write_whole(folder / LIST_FILE, text.encode(), private=False, flush=True)


def _flush(path: Path) -> dict[str, Any]:
    """Wait until a file is on the disk; its entry in a list. What was written just now is still in memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, DIGEST_NAME).hexdigest()
        # The digest has read to the end: the position is the size.
        return {"bytes": file.tell(), DIGEST_NAME: digest}


def _move(aside: Path, folder: Path) -> None:
    """Give the whole checkpoint its name; one that has it already goes away first."""
    old_folder = _sibling(folder, "replaced")
    if folder.exists():
        _remove(old_folder)
        # Killed between the two renames, a run leaves it to `tidy` to give the old one its name back.
        folder.rename(old_folder)
    try:
        aside.rename(folder)
    except OSError:
        if old_folder.exists():
            old_folder.rename(folder)
        raise
    sync(folder.parent)
    shutil.rmtree(old_folder, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Rename the folder, then remove it, so that no reader takes a half-removed folder for a checkpoint."""
    if CHECKPOINT_NAME.fullmatch(folder.name):
        folder = folder.rename(_sibling(folder, "removing"))
    if folder.exists():
        shutil.rmtree(folder)


def _sibling(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")


def _folders_with_list(parent: Path) -> list[Path]:
    folders = parent.iterdir() if parent.is_dir() else ()
    return [folder for folder in folders if step_of(folder) is not None and (folder / LIST_FILE).is_file()]


def sequence_of(folder: Path, unknown: int = 0) -> int:
    """The number of a checkpoint, higher than of those written before; `unknown` if its list has none."""
    file_list = _read_list(folder)
    return unknown if isinstance(file_list, str) else file_list.sequence


def _age(folder: Path) -> tuple[int, int]:
    """A key for sorting by number.

    One whose list is damaged comes last: it is named before an older one is gone on from.
    """
    return sequence_of(folder, MAX_SEQUENCE + 1), step_of(folder) or 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, DIGEST_NAME).hexdigest()
