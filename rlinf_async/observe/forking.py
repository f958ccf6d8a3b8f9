"""An interpreter that imports what probes stand on once, and forks a process for each of them.

Nothing of a probe outlives it: what it imports, sets or breaks is its own process's. It must be forked before
anything starts threads or a CUDA context, neither of which survives a fork; with threads about, it refuses.
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
"""Reads a probe a line, runs its `ground` here and its code in a fork, and answers with the exit status."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Keeps numpy and torch from starting threads as they are imported."""


@dataclass(frozen=True)
class Probe:
    """Code to be tried, and what it stands on: imports that are safe to share, and may fail."""

    code: str
    env: Mapping[str, str]
    ground: Sequence[str]
    output: str
    errors: str


class ForkingInterpreter:
    """Answers probes; starts with the first of them, and again after one that took it along."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(
        self, code: str, *, env: Mapping[str, str], ground: Sequence[str], timeout: float
    ) -> subprocess.CompletedProcess[str] | None:
        """Run `code` in a fork and return its result; None where it needs an interpreter of its own.

        Raises:
            subprocess.TimeoutExpired: the fork has not ended within `timeout` s.
        """
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder, "output"), Path(folder, "errors")
            output.touch()
            errors.touch()
            probe = Probe(code, env, ground, str(output), str(errors))
            answer = self._ask(json.dumps(asdict(probe)), timeout)
            # Negative for a signal; SERVER_CODE's word `threads`, or nothing, says that there was no fork.
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
        if not answer:  # it has ended: what it imported for the probe has crashed it
            self._end()
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        os.killpg(process.pid, signal.SIGKILL)  # not yet waited for: the group is there
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
        # A group of its own: `_end` ends the fork of a probe that hangs as well.
        start_new_session=True,
    )


_SHARED: ContextVar[ForkingInterpreter | None] = ContextVar("forking interpreter", default=None)


@contextmanager
def shared_interpreter() -> Iterator[None]:
    """Within it, probes that name their ground are forked from one interpreter."""
    with ForkingInterpreter() as interpreter:
        token = _SHARED.set(interpreter)
        try:
            yield
        finally:
            _SHARED.reset(token)


def forked(
    code: str, *, env: Mapping[str, str], ground: Sequence[str], timeout: float
) -> subprocess.CompletedProcess[Any] | None:
    """As `ForkingInterpreter.run`, by the shared one; None without one, or without a ground."""
    interpreter = _SHARED.get()
    if interpreter is None or not ground:
        return None
    return interpreter.run(code, env=env, ground=ground, timeout=timeout)
