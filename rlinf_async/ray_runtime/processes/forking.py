"""Processes that several threads of one process start by forking: the simulators of a worker's shards.

A forked process has a copy of all memory and descriptors, also of those that other threads are working on.
Two things go wrong when all shards start their simulators at the same time:

* A thread that starts a simulator makes a pipe, forks, and closes the child's end of the pipe in the parent.
  The pipe then ends when the child ends, and the parent notices the child's death by it. A child that another
  thread forks meanwhile has a copy of that end, and keeps the pipe open for as long as it lives. If the first
  simulator dies, the thread that waits for its answer waits for ever.
* With filelock, which torch and huggingface_hub import, a fork may fail: many releases of filelock since 3.31
  refuse one while another thread forks ("os.fork is unsafe while filelock is changing descriptor ownership").
  They check before any hook of `os.register_at_fork` is called, so forks can only be serialized around
  `os.fork` itself.

`multiprocessing` always calls `os.fork` and `multiprocessing.connection.Pipe` by these names. Each is
replaced by a function that does the same, one thread at a time, and keeps the pipes of each thread apart.
"""

from __future__ import annotations

import os
from functools import wraps
from multiprocessing import connection
from threading import Lock, RLock, get_ident
from typing import Any
from weakref import WeakSet

MARK_ATTRIBUTE = "rlinf_async_forking"
"""The attribute that marks the function in the place of `os.fork`."""


class Forking:
    """Forks one process at a time; the child closes the pipes of other threads in `apart`."""

    def __init__(self) -> None:
        self._turn = RLock()  # reentrant: a finalizer may start a process during `fork` or `pipe`
        self._fork, self._pipe = os.fork, connection.Pipe
        self.apart: dict[int, WeakSet[Any]] = {}
        """By thread number: the ends of pipes that the thread has made since it called `fork_apart`."""

    def fork(self) -> int:
        with self._turn:  # the child begins with its copy of the lock held, and releases it here
            child = self._fork()
            if child == 0:
                self._leave_others()
            return child

    def pipe(self, duplex: bool = True) -> tuple[Any, Any]:
        with self._turn:  # no fork before the new ends are noted in `apart`
            ends = self._pipe(duplex)
            self.apart.get(get_ident(), WeakSet()).update(ends)
            return ends

    def _leave_others(self) -> None:
        # In the child the running thread is the one that has forked; its number is the same as in the parent.
        own = get_ident()
        for ends in [ends for thread, ends in self.apart.items() if thread != own]:
            for end in list(ends):
                end.close()


def fork_apart() -> None:
    """Keep the pipes of this thread from the children of other threads, from now on; see the module's head.

    Children still inherit the pipes of threads that have not called this.
    """
    with _INSTALL_LOCK:
        forking = getattr(os.fork, MARK_ATTRIBUTE, None) or _install()
    forking.apart.setdefault(get_ident(), WeakSet())


_INSTALL_LOCK = Lock()


def _install() -> Forking:
    forking = Forking()

    @wraps(os.fork)
    def fork() -> int:
        return forking.fork()

    @wraps(connection.Pipe)
    def pipe(duplex: bool = True) -> tuple[Any, Any]:
        return forking.pipe(duplex)

    setattr(fork, MARK_ATTRIBUTE, forking)
    # Once in a process, and for good: a second pair of functions would use a lock of its own.
    os.fork, connection.Pipe = fork, pipe
    return forking
