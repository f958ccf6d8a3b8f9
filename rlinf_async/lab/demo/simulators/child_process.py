"""Call an object in a child process over a pipe."""

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from rlinf_async.core.failures import SimulatorDied

END_TIMEOUT_S = 10.0
"""Seconds that a child may take to end by itself."""
DUMP_TIMEOUT_S = 2.0
"""Seconds that a child may take to write its stack."""


class ChildProcess:
    """Calls methods of `factory(*args)`, which is built in a new interpreter.

    `factory` is written "module:name". One call is under way at a time: `submit` starts it, `result`
    waits for it. `result` raises the exceptions of the object again, and the first `result` those of the
    factory. The child ends when its pipe closes, so that it cannot outlive this process, even if this process
    is killed.
    """

    # `multiprocessing` is not used to start the child: its spawn imports the parent's main module,
    # which inside a Ray worker means importing Ray and all of the host framework again.

    def __init__(self, factory: str, *args: object) -> None:
        self._pipe, child_end = Pipe()
        self._dump = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the child
        with child_end:
            fds = (child_end.fileno(), self._dump.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *(str(fd) for fd in fds)], pass_fds=fds
            )
        self._pipe.send((factory, args))
        self._built = False
        self._answers_due = 0
        self._aborted = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def busy(self) -> bool:
        """True if a call has not been answered."""
        return self._answers_due > 0

    def submit(self, method: str, *args: object) -> None:
        """Start a call.

        Raises:
            SimulatorDied: the child has ended; the message has the signal or exit status.
        """
        self._answers_due += 1
        try:
            self._pipe.send((method, args))
        except (BrokenPipeError, ConnectionResetError):
            raise self._died() from None

    def result(self) -> Any:
        """Return the result of the submitted call.

        Raises:
            SimulatorDied: the child has ended; the message has the signal or exit status.
        """
        if not self._built:
            self._receive()
            self._built = True
        try:
            return self._receive()
        finally:
            self._answers_due -= 1

    def _receive(self) -> Any:
        try:
            failure, value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if failure is not None:
            raise failure
        return value

    def abort(self, reason: str) -> None:
        """End a child that does not answer; may be called while another thread waits for `result`.

        That thread's `SimulatorDied` has `reason`, and the child's stack unless the child is stopped.
        """
        self._aborted = reason
        self._process.send_signal(signal.SIGABRT)  # makes the child write its stack
        self._end(DUMP_TIMEOUT_S)

    def close(self) -> None:
        """Close the pipe and end the child, by force after `END_TIMEOUT_S`. May be called twice."""
        self._pipe.close()
        self._end(END_TIMEOUT_S)
        self._dump.close()

    def _end(self, seconds: float) -> None:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _died(self) -> SimulatorDied:
        self._end(END_TIMEOUT_S)
        self._dump.seek(0)
        dump = self._dump.read().decode(errors="replace").rstrip()
        stood = f"; it stood at:\n{dump}" if dump else ""
        if self._aborted:
            return SimulatorDied(f"simulator process {self.pid} was ended: {self._aborted}{stood}")
        status = self._process.returncode
        if status >= 0:
            return SimulatorDied(f"simulator process {self.pid} has ended with status {status}{stood}")
        name = signal.Signals(-status).name
        return SimulatorDied(f"simulator process {self.pid} was killed by signal {-status} ({name}){stood}")


def serve(pipe: Connection) -> None:
    """Build the object that the first message names, then answer calls until the pipe closes."""
    target = None
    try:
        factory, args = pipe.recv()
        target = _answer(pipe, _build, factory, *args)
        while target is not None:
            method, call_args = pipe.recv()
            _answer(pipe, getattr(target, method), *call_args)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        if target is not None:
            target.close()


def _build(factory: str, *args: object) -> Any:
    module, _, name = factory.partition(":")
    return getattr(import_module(module), name)(*args)


def _answer(pipe: Connection, call: Callable[..., Any], *args: object) -> Any:
    """Send the result or the exception of `call`; a built object is not sent."""
    try:
        value = call(*args)
    except (ValueError, RuntimeError, OSError, ArithmeticError, LookupError) as failure:
        pipe.send((failure, None))
        return None
    pipe.send((None, None if call is _build else value))
    return value


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; this one has to end after its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])))
    # Interpreter teardown would destroy OpenGL objects after their library, so it is skipped.
    sys.stdout.flush()
    os._exit(0)
