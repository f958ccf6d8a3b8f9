"""An interpreter that makes the common imports of probes once, and forks a process for each probe.

Imports and side effects of a probe end with its process. The fork must come before threads or a CUDA context
start, which do not survive a fork; if threads run, the interpreter refuses to fork.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

SERVER_CODE = """
import importlib, json, os, sys

def run(code):
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
    except BaseException:
        import traceback
        traceback.print_exc()
    return 1

def begin(probe):
    for number, path in ((1, probe["output"]), (2, probe["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(probe["env"])
    status = run(probe["code"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    probe = json.loads(line)
    for code in probe["ground"]:
        run(code)
    sys.stdout.flush()
    sys.stderr.flush()
    if len(os.listdir("/proc/self/task")) > 1:
        print("threads", file=answers, flush=True)
        continue
    pid = os.fork()
    if not pid:
        answers.close()
        begin(probe)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(status, file=answers, flush=True)
"""
"""Reads one probe per line, runs its `ground` here and its code in a fork, and prints the exit status."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Keeps numpy and torch from starting threads when they are imported."""


@dataclass(frozen=True)
class Probe:
    """Code to try, and its `ground`: imports that probes can share, and that may fail."""

    code: str
    env: Mapping[str, str]
    ground: Sequence[str]
    output: str
    errors: str


class ForkingInterpreter:
    """Runs probes; its process starts with the first probe, and again after a probe has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(
        self, code: str, *, env: Mapping[str, str], ground: Sequence[str], timeout: float
    ) -> subprocess.CompletedProcess[str] | None:
        """Run `code` in a fork and return its result; None if it cannot be forked and needs an interpreter.

        Raises:
            subprocess.TimeoutExpired: the fork has not ended within `timeout` s.
        """
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            output.touch()
            errors.touch()
            probe = Probe(code, env, ground, str(output), str(errors))
            answer = self._ask(json.dumps(asdict(probe)), timeout)
            # A number, negative for a signal. `threads`, or nothing, means that there was no fork.
            if not answer.lstrip("-").isdigit():
                return None
            return subprocess.CompletedProcess(
                code, int(answer), output.read_text(errors="replace"), errors.read_text(errors="replace")
            )

    def _ask(self, line: str, timeout: float) -> str:
        process = self._process = self._process or _start_server()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._end()
            return ""
        if not select.select([process.stdout], [], [], timeout)[0]:
            self._end()
            raise subprocess.TimeoutExpired(process.args, timeout)
        answer = process.stdout.readline().strip()
        if not answer:  # the interpreter has ended: an import of the probe's `ground` has crashed it
            self._end()
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so the group still exists
        process.communicate()


def _start_server() -> subprocess.Popen[str]:
    # -P keeps the current folder off the path: a checkout there must not stand in for the installed package.
    return subprocess.Popen(
        [sys.executable, "-P", "-c", SERVER_CODE],
        env={**os.environ, **ONE_THREAD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A process group of its own, so that `_end` also kills the fork of a hung probe.
        start_new_session=True,
    )


_SHARED_INTERPRETER: ContextVar[ForkingInterpreter | None] = ContextVar("forking interpreter", default=None)


@contextmanager
def shared_interpreter() -> Iterator[None]:
    """A block where probes with a `ground` are forked from one interpreter."""
    with ForkingInterpreter() as interpreter:
        token = _SHARED_INTERPRETER.set(interpreter)
        try:
            yield
        finally:
            _SHARED_INTERPRETER.reset(token)


def forked(
    code: str, *, env: Mapping[str, str], ground: Sequence[str], timeout: float
) -> subprocess.CompletedProcess[Any] | None:
    """`ForkingInterpreter.run` of the shared interpreter; None without one, or without a ground."""
    interpreter = _SHARED_INTERPRETER.get()
    if interpreter is None or not ground:
        return None
    return interpreter.run(code, env=env, ground=ground, timeout=timeout)
