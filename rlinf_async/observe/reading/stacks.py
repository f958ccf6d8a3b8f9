"""Asks the processes of a run for their stacks, in the way that `observe.stacks` describes."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from rlinf_async.observe.files import opened
from rlinf_async.observe.run_dir import RunDir

MAX_ANSWER_BYTES = 16 << 20
"""The most bytes of an answer that are shown."""
ANSWER_TIMEOUT_S = 3.0
"""Seconds to wait for an answer; a process that can answer does so at once."""


def stacks_of(run_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield the name of every process of the run on this machine, and the present stacks of its threads."""
    directory = RunDir(run_dir).stacks
    if directory.is_symlink():
        return
    for request in sorted(directory.glob("*.ask")):
        answer = request.with_suffix(".txt")
        before = _size(answer)
        if not _ask(request):
            continue
        # Turn the file name of `answer_for_stacks` back into the process name.
        yield request.stem.rpartition("-")[0].replace("-", " "), _new_text(answer, before)


def _ask(request: Path) -> bool:
    """Write a request into a pipe of this account; return True if a process can read it.

    If the process has ended, or runs on another machine, the pipe has no reader. A link, or a file that is
    not a pipe, is not written to: the owner of the directory may have planted it to harm another file.
    """
    try:
        pipe = os.open(request, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        pipe_status = os.fstat(pipe)
        if not stat.S_ISFIFO(pipe_status.st_mode) or pipe_status.st_uid != os.geteuid():
            return False
        os.write(pipe, b"?")
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


def _new_text(path: Path, before: int) -> str:
    give_up, size = time.monotonic() + ANSWER_TIMEOUT_S, before
    while time.monotonic() < give_up:
        time.sleep(0.05)
        last, size = size, _size(path)
        # Answers have no end mark: one that no longer grows counts as whole.
        if size > before and size == last:
            break
    if size == before:
        return (
            "it does not answer: it is stopped, or native code keeps the interpreter's lock "
            "(py-spy dump shows it)"
        )
    try:
        with opened(path) as file:
            text = os.pread(file, min(size - before, MAX_ANSWER_BYTES), before)
    except OSError as error:
        return f"its answer cannot be read ({error.strerror})"
    return text.decode(errors="replace").strip()


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0
