"""Checkpoint folders that are whole or absent: written aside, listed, renamed, and found again.

A checkpoint `global_step_N` is written into `.global_step_N.writing`. When all of it is there, a list of
its files, `complete.json`, is added, everything is flushed to the disk, and one rename gives it its name. So
a folder of that name is whole, unless it was changed afterwards. The list shows such a change: it has digests
of all files, and of itself.

Each list has a sequence number, one more than the highest in the same folder, which tells the later of two
checkpoints. Clocks are not used: they may go back, jump ahead or stand still.

This module uses the standard library only, as `rlinf_async.supervise` reads checkpoints without torch or Ray.
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

from rlinf_async.observe.files import make_directory, sync, write_whole
from rlinf_async.observe.read_files import read_regular

LIST_FILE = "complete.json"
LIST_FORMAT = 2
MAX_SEQUENCE = 1 << 53
MAX_LIST_BYTES = 64 << 20
DIGEST_NAME = "sha256"
"""The fastest digest in Python on today's processors, which have instructions for it."""
READER_THREADS = 8
"""Threads that read files of one checkpoint at once; hashing releases the interpreter's lock."""

CHECKPOINT_NAME = re.compile(r"global_step_(\d+)")
UNFINISHED_NAME = re.compile(r"\.global_step_\d+\.(writing|replaced|removing)")


@dataclass(frozen=True)
class Newest:
    """The newest whole checkpoint of several."""

    folder: Path | None
    step: int
    skipped: tuple[str, ...]
    """Sentences about newer checkpoints that are not whole."""


def step_of(folder: Path) -> int | None:
    """Return the step of a checkpoint, by its name; None if the name is not that of a checkpoint."""
    match = CHECKPOINT_NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def newest_sequence(parent: Path) -> int:
    """Return the highest sequence number in `parent`, of checkpoints whole or not; 0 if there is none."""
    return max((sequence_of(folder) for folder in _folders_with_list(parent)), default=0)


@contextmanager
def written_aside(
    folder: Path, facts: Mapping[str, Any], *, before: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """Yield a folder to write a checkpoint into; it is renamed to `folder` when the block ends without an
    error.

    `facts`, plain data about the run, are kept in the list of files. `before` is called when everything is
    written, just before the rename. After an error the yielded folder is removed.

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
        # The checkpoint exists from the rename on: nothing may be written into it afterwards.
        _move(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def facts_of(folder: Path) -> Mapping[str, Any]:
    """Return the facts in the list of a checkpoint; empty if it has no list that a run has written."""
    file_list = _read_list(folder)
    return {} if isinstance(file_list, str) else file_list.facts


def problem_of(folder: Path, *, digests: bool = True) -> str | None:
    """Return why `folder` is not a whole checkpoint, in a few words; None if it is one.

    Without `digests` only names and sizes of its files are checked, and no file but the list is read.
    """
    file_list = _read_list(folder)
    if isinstance(file_list, str):
        return file_list
    return next(
        (wrong for name, entry in file_list.files.items() if (wrong := entry.problem(folder, name, digests))),
        None,
    )


def find_newest(parent: Path, *, digests: bool = True) -> Newest:
    """Return the whole checkpoint in `parent` with the highest sequence number.

    Checkpoints without a list of files, such as those of a framework, are ignored. A checkpoint is skipped,
    with a sentence in `skipped`, if its list does not agree with its files. `digests` as in `problem_of`.
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

    A checkpoint that is not whole, or not written by this package, is left for the user to inspect. The
    checkpoints to keep are verified before any is removed; those that this process has `written` itself are
    trusted.

    Raises:
        OSError: a checkpoint cannot be removed.
    """
    if keep == "all":
        return []
    count, old_folders = 0, []
    for folder in sorted(_folders_with_list(parent), key=_age, reverse=True):
        enough = count >= max(1, keep)
        if problem_of(folder, digests=not enough and folder not in written) is None:
            count += 1
            old_folders += [folder] if enough else []
    # The oldest first: if the process is killed in between, the newer ones are left.
    for folder in reversed(old_folders):
        _remove(folder)
    return old_folders[::-1]


def tidy(parent: Path) -> None:
    """Remove folders that a killed process has left half written, half removed or half replaced.

    The caller must be the only process that writes to `parent`.
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
    """Size and digest of a file, as a list has them."""

    bytes: int
    digest: str

    @classmethod
    def read(cls, name: object, entry: object) -> _Entry | None:
        """Return the entry for file `name`; None if it is no entry, or names a file outside the
        checkpoint.
        """
        if not isinstance(name, str) or not isinstance(entry, dict):
            return None
        size, digest = entry.get("bytes"), entry.get(DIGEST_NAME)
        inside = name and not Path(name).is_absolute() and ".." not in Path(name).parts and "\0" not in name
        if not inside or not is_count(size) or not isinstance(digest, str):
            return None
        return cls(size, digest)

    def problem(self, folder: Path, name: str, digests: bool) -> str | None:
        """Return how the file `name` differs from its entry, in a few words; None if it does not."""
        path = folder / name
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                return f"{name} is not a file"
            if status.st_size != self.bytes:
                return f"{name} has {status.st_size} bytes instead of {self.bytes}"
            if digests and _digest(path) != self.digest:
                return f"the content of {name} has changed since it was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        return None


@dataclass(frozen=True)
class _List:
    sequence: int
    files: dict[str, _Entry]
    facts: Mapping[str, Any]
    """All entries of the list."""


def _read_list(folder: Path) -> _List | str:
    """Return the list of a checkpoint; a few words if it has none, or one that no run has written."""
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
    return _List(sequence, whole, list_facts)


def is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _with_seal(facts_and_files: Mapping[str, Any]) -> str:
    """Return the text of a list; its last entry is a digest of the others."""
    others = {name: fact for name, fact in facts_and_files.items() if name != DIGEST_NAME}
    # JSON keeps the order of entries, so that a list that is read and sealed again gives the same text.
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
    # The list comes last, when all other files are on the disk: a folder with a list is whole.
    text = _with_seal({**facts_of_list, "files": files})
    write_whole(folder / LIST_FILE, text.encode(), private=False, flush=True)


def _flush(path: Path) -> dict[str, Any]:
    """Flush a file to the disk, and return its entry in a list; the content is read from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, DIGEST_NAME).hexdigest()
        # The digest has read to the end, so the position is the size.
        return {"bytes": file.tell(), DIGEST_NAME: digest}


def _move(aside: Path, folder: Path) -> None:
    """Rename the whole checkpoint to `folder`; a checkpoint with that name is replaced."""
    old_folder = _sibling(folder, "replaced")
    if folder.exists():
        _remove(old_folder)
        # If the process is killed between the two renames, `tidy` gives the old checkpoint its name back.
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
    """Return the sequence number of a checkpoint; `unknown` if it has no readable list."""
    file_list = _read_list(folder)
    return unknown if isinstance(file_list, str) else file_list.sequence


def _age(folder: Path) -> tuple[int, int]:
    """Return a key for sorting by sequence number.

    A checkpoint with a damaged list sorts as the newest: a run reports it before it resumes from an older
    one.
    """
    return sequence_of(folder, MAX_SEQUENCE + 1), step_of(folder) or 0


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, DIGEST_NAME).hexdigest()
