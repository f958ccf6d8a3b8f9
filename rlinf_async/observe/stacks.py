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
import sys
import threading
import traceback
from pathlib import Path

from rlinf_async.observe.files import append, make_directory
from rlinf_async.observe.run_files import RunFiles


def answer_for_stacks(run_dir: Path, process: str) -> None:
    """Answer requests of `stacks_of` until this process ends, under the name `process`.

    On a file system without named pipes this does nothing.
    """
    directory = RunFiles(run_dir).stacks
    make_directory(directory)
    request = directory / f"{process.replace(' ', '-')}-{os.getpid()}.ask"
    with contextlib.suppress(OSError):
        request.unlink(missing_ok=True)
        os.mkfifo(request, 0o600)
        # For reading *and* writing: opening does not wait for a writer, and reading never meets the end.
        pipe = os.open(request, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        # A daemon, as it waits for ever and must not keep the process from ending.
        threading.Thread(target=_answer, args=(pipe, request.with_suffix(".txt")), daemon=True).start()


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
