"""The stacks of a running process, for a reader on the same machine.

A thread of the process itself answers, under the interpreter's lock. A signal handler could answer without it
(`faulthandler` does), but it would walk frames that other threads are changing meanwhile: on Python 3.11 that
ended busy processes by SIGSEGV after some hundred questions, and a look at a run must not end it. The price:
code that holds the lock for ever is silent here, and only a debugger from outside (`py-spy dump`) sees it.

A process asks and answers through two files in the run directory, so that their modes say who may ask:
`NAME-PID.ask`, a named pipe, and `NAME-PID.txt`, to which an answer is appended.
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

MOST_BYTES = 16 << 20
"""Bytes of an answer that are shown at most."""
ANSWER_S = 3.0
"""Seconds to wait for stacks: a process writes them at once, if it can."""


def answer_for_stacks(run_dir: Path, process: str) -> None:
    """Until this process ends, let `stacks_of` ask it for the stacks of its threads under the name `process`.

    A file system without named pipes leaves the process without this; everything else goes on.
    """
    directory = RunDir(run_dir).stacks
    make_directory(directory)
    request = directory / f"{process.replace(' ', '-')}-{os.getpid()}.ask"
    with contextlib.suppress(OSError):
        request.unlink(missing_ok=True)
        os.mkfifo(request, 0o600)
        # For reading *and* writing: opening waits for nobody, and reading never meets an end.
        pipe = os.open(request, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        # A daemon: it waits for ever, and may not keep the process from ending.
        threading.Thread(target=_answer, args=(pipe, request.with_suffix(".txt")), daemon=True).start()


def stacks_of(run_dir: Path) -> Iterator[tuple[str, str]]:
    """The name of every process of the run on this machine, and the stacks of its threads right now."""
    directory = RunDir(run_dir).stacks
    if directory.is_symlink():
        return
    for request in sorted(directory.glob("*.ask")):
        answer = request.with_suffix(".txt")
        before = _size(answer)
        if not _ask(request):
            continue
        # The name as `answer_for_stacks` makes it, backwards.
        yield request.stem.rpartition("-")[0].replace("-", " "), _new_text(answer, before)


def _ask(request: Path) -> bool:
    """Write a question into a pipe of the own account; return True if a process may read it.

    No process reads where the asked one has ended, or lives on another machine. A link, or a file that is no
    pipe, is not written into: the owner of the directory may have meant another file by it.
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
        # The directory may have gone, or the disk may be full: then nobody is answered.
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
    give_up, size = time.monotonic() + ANSWER_S, before
    while time.monotonic() < give_up:
        time.sleep(0.05)
        last, size = size, _size(path)
        # Nothing marks the end of an answer: one that does not grow any more is whole.
        if size > before and size == last:
            break
    if size == before:
        return (
            "it does not answer: it is stopped, or native code keeps the interpreter's lock "
            "(py-spy dump shows it)"
        )
    try:
        with opened(path) as file:
            text = os.pread(file, min(size - before, MOST_BYTES), before)
    except OSError as error:
        return f"its answer cannot be read ({error.strerror})"
    return text.decode(errors="replace").strip()


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.lstat().st_size
    return 0
