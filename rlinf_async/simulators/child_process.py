"""An object that lives in a process of its own and is called over a pipe."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any


class ChildProcess:
    """Calls methods of `factory(*args)`, which is built in a new interpreter.

    `factory` is written "module:name". One call is under way at a time: `submit` starts it, `result`
    waits for it. An exception of the object is raised again by `result`, one of the factory by the first
    `result`. The child ends when its pipe closes, so it cannot outlive this process, however this process
    dies.
    """

    # `multiprocessing` is not used to start the child: its spawn imports the parent's main module,
    # which inside a Ray worker means importing Ray and all of the host framework again.

    def __init__(self, factory: str, *args: Any) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._pipe.send((factory, args))
        self._built = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, method: str, *args: Any) -> None:
        self._pipe.send((method, args))

    def result(self) -> Any:
        """What the submitted call returned; EOFError if the child has died."""
        if not self._built:
            self._receive()
            self._built = True
        return self._receive()

    def _receive(self) -> Any:
        failure, value = self._pipe.recv()
        if failure is not None:
            raise failure
        return value

    def close(self) -> None:
        """Hang up and wait for the child to end. May be called twice."""
        self._pipe.close()
        self._process.wait()


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


def _build(factory: str, *args: Any) -> Any:
    module, _, name = factory.partition(":")
    return getattr(import_module(module), name)(*args)


def _answer(pipe: Connection, call: Callable[..., Any], *args: Any) -> Any:
    """Send what `call` returns or raises; an object that was built stays here."""
    try:
        value = call(*args)
    except (ValueError, RuntimeError, OSError, ArithmeticError, LookupError) as failure:
        pipe.send((failure, None))
        return None
    pipe.send((None, None if call is _build else value))
    return value


if __name__ == "__main__":
    # Ctrl-C reaches every process of the terminal; this one ends when its parent has, and not before.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
    # Interpreter teardown would destroy OpenGL objects after their library: nothing is left to do.
    sys.stdout.flush()
    os._exit(0)
