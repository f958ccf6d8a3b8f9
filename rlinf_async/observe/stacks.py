"""The stacks of a running process, for a reader on the same machine.

A thread of the process itself answers, and holds the interpreter's lock meanwhile. A signal handler could
answer without the lock (`faulthandler` does), but it would walk frames that other threads are changing: on
Python 3.11 this ended busy processes by SIGSEGV after some hundred requests, and looking at a run must not
end it. The price: a process with code that never releases the lock does not answer here; only a debugger from
outside (`py-spy dump`) can show its stacks.

Requests go through a named pipe in the run directory, `NAME-PID.ask`; answers are appended to the file
`NAME-PID.txt` beside it. The modes of these files decide which accounts may ask.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from rlinf_async.observe.files import append, make_directory, opened
from rlinf_async.observe.run_dir import RunDir

MAX_ANSWER_BYTES = 16 << 20
"""The most bytes of an answer that are shown."""
ANSWER_TIMEOUT_S = 3.0
"""Seconds to wait for an answer; a process that can answer does so at once."""


def answer_for_stacks(run_dir: Path, process: str) -> None:
    """Answer requests of `stacks_of` until this process ends, under the name `process`.

    On a file system without named pipes this does nothing.
    """
    directory = RunDir(run_dir).stacks
    make_directory(directory)
    request = directory / f"{process.replace(' ', '-')}-{os.getpid()}.ask"
    with contextlib.suppress(OSError):
        request.unlink(missing_ok=True)
        os.mkfifo(request, 0o600)
        # For reading *and* writing: opening does not wait for a writer, and reading never meets the end.
        pipe = os.open(request, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        # A daemon, as it waits for ever and must not keep the process from ending.
        threading.Thread(target=_answer, args=(pipe, request.with_suffix(".txt")), daemon=True).start()


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
    """Write a request into a pipe of the own account; return True if a process can read it.

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


def _answer(pipe: int, path: Path) -> None:
    while os.read(pipe, 1):
        # If the directory has gone, or the disk is full, there is no answer.
        with contextlib.suppress(OSError):
            append(path, _stacks().encode())


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}\n"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )


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
