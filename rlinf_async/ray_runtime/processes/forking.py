"""Processes that several threads of one process start by forking: the simulators of a worker's shards.

A forked process has a copy of everything, of what other threads are in the midst of too. Two things go wrong
when all shards start their simulators at the same time:

* A thread that starts a simulator makes a pipe, forks, and closes the child's end of the pipe at home, so
  that the pipe ends when the child does: that is how its death is noticed. A child that another thread forks
  meanwhile has a copy of that end, and keeps the pipe open for as long as it lives. The thread that waits for
  an answer of a simulator that has died then waits for ever.
* With filelock, which torch and huggingface_hub import, a fork may fail: many of its releases since 3.31
  refuse one while another thread forks ("os.fork is unsafe while filelock is changing descriptor ownership").
  They look before any hook of `os.register_at_fork` is called, so that turns can only be taken around
  `os.fork` itself.

`multiprocessing` always calls `os.fork` and `multiprocessing.connection.Pipe` by these names, and each is
replaced by a function that does the same and looks to the other threads.
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
    """Forks one at a time, after which a child has no pipe that another of the threads `apart` has made."""

    def __init__(self) -> None:
        self._turn = RLock()  # a finalizer may start something in the midst of either
        self._fork, self._pipe = os.fork, connection.Pipe
        self.apart: dict[int, WeakSet[Any]] = {}
        """The ends of pipes that a thread has made, for each that has asked for it."""

    def fork(self) -> int:
        with self._turn:  # which the child, too, holds when it begins, and gives up
            child = self._fork()
            if child == 0:
                self._leave_others()
            return child

    def pipe(self, duplex: bool = True) -> tuple[Any, Any]:
        with self._turn:  # no fork while there is an end that nobody knows of
            ends = self._pipe(duplex)
            self.apart.get(get_ident(), WeakSet()).update(ends)
            return ends

    def _leave_others(self) -> None:
        # In the child this is the thread that has forked, by the number that it has in the parent.
        own = get_ident()
        for ends in [ends for thread, ends in self.apart.items() if thread != own]:
            for end in list(ends):
                end.close()


def fork_apart() -> None:
    """From now on no other thread's children inherit the pipes of this one; see the top of this module.

    Pipes of threads that have not asked for it go to every child, as always.
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
    # Once a process, and for good: a second pair would take turns by a lock of its own.
    os.fork, connection.Pipe = fork, pipe
    return forking
