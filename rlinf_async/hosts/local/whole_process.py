"""State of the whole process, which environments that live in it may not change.

On other hosts environments have processes of their own, and may change them. Here a policy computes in the
same process, by torch's default type, and event loops wait by their descriptors. So this state is checked
after each call of the environments: a change is undone, and the environments have failed.

The check cannot tell which of several environments that step at the same time made a change; those are blamed
that were checked first, and all are of one class.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from selectors import DefaultSelector, SelectorKey
from threading import Lock
from typing import TypeVar

import torch

T = TypeVar("T")

FIRST_SPARE = 512
"""Copies of descriptors have at least this number: who closes what is not theirs closes low ones."""


class WholeProcess:
    """The settings and descriptors of a run in this process, as they are when this is made."""

    def __init__(self) -> None:
        self._dtype, self._recursion = torch.get_default_dtype(), sys.getrecursionlimit()
        self._threads = torch.get_num_threads()
        self._lock = Lock()
        self._spares: dict[int, tuple[int, os.stat_result]] = {}
        """By descriptor: a copy of it, and the file that is open there."""
        self._reopened_descriptors: list[int] = []
        """Descriptors that were put back before it was known who had closed them."""
        self._loops: list[_Loop] = []

    def loop(self) -> asyncio.AbstractEventLoop:
        """An event loop whose descriptors are its own until it is closed.

        It is not the one that asyncio would choose: environments of this process may have told it to.
        """
        made = _Loop(self)
        self._loops.append(made)
        return made

    def pin_threads(self) -> None:
        """Have this thread calculate with as many threads as the run began with, whatever others are told."""
        torch.set_num_threads(self._threads)
        torch.get_num_threads()  # the first use in a thread takes on what any thread has been told last

    def check(self, culprit: str) -> None:
        """Put back what is not as it was.

        Raises:
            ValueError: there was something; `culprit` is said to have done it.
        """
        changes = list(self._changes())
        if changes:
            raise ValueError(f"{culprit} have {' and '.join(changes)}; it is as it was again")

    def hold(self, descriptors: list[int]) -> None:
        """Keep these open."""
        with self._lock:
            for each in descriptors:
                spare = fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, FIRST_SPARE)
                self._spares[each] = spare, os.fstat(each)

    def let_go(self, descriptors: list[int]) -> None:
        """Give up the spares of descriptors that are about to be closed."""
        with self._lock:
            for each in descriptors:
                spare, _ = self._spares.pop(each, (None, None))
                if spare is not None:
                    with suppress(OSError):
                        os.close(spare)

    def reopen(self) -> None:
        """Put back closed descriptors, for the loop that waits by them; the next `check` names them."""
        with self._lock:
            self._reopened_descriptors += self._put_back()

    def _put_back(self) -> list[int]:
        closed = [each for each, (_, status) in self._spares.items() if not _is_open(each, status)]
        for each in closed:
            with suppress(OSError):  # the copy was closed, too: who uses it will say so
                os.dup2(self._spares[each][0], each, inheritable=False)
        if closed:
            # Who has called a loop meanwhile has written to a closed descriptor, which asyncio passes over:
            # the loop would sleep on, beside what it was to do.
            for loop in self._loops:
                loop._write_to_self()  # type: ignore[attr-defined]
        return closed

    def _changes(self) -> Iterator[str]:
        if (dtype := torch.get_default_dtype()) is not self._dtype:
            torch.set_default_dtype(self._dtype)
            yield f"set torch's default type to {dtype}, by which the policy would calculate, too"
        if (limit := sys.getrecursionlimit()) < self._recursion:  # a higher one takes nothing from anybody
            sys.setrecursionlimit(self._recursion)
            yield f"lowered the recursion limit of the whole process to {limit}"
        with self._lock:
            closed, self._reopened_descriptors = {*self._reopened_descriptors, *self._put_back()}, []
        if closed:
            yield f"closed descriptors of the run ({', '.join(map(str, sorted(closed)))})"


def call_in(process: WholeProcess, culprit: Callable[[], str], function: Callable[[], T]) -> T:
    """Return the result of `function` of environments, which `culprit` names afterwards; see
    `WholeProcess.check`.
    """
    try:
        result = function()
    except BaseException:
        with suppress(ValueError):  # they have failed anyhow
            process.check("they")
        raise
    process.check(culprit())
    return result


class _Selector(DefaultSelector):
    def __init__(self, process: WholeProcess) -> None:
        super().__init__()
        self._process = process

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        try:
            return super().select(timeout)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            # Environments have closed it in their thread, which has not come to the check behind their call.
            self._process.reopen()
            return []


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, process: WholeProcess) -> None:
        selector = _Selector(process)
        super().__init__(selector)
        # The end of its pipe that others write into is known to nobody else.
        # Taken when the loop is new: later the map has descriptors of others, which close their own.
        own = [selector.fileno(), *selector.get_map(), self._csock.fileno()]  # type: ignore[attr-defined]
        self._process, self._own = process, own
        process.hold(own)

    def close(self) -> None:
        if not self.is_closed():
            self._process.let_go(self._own)
        super().close()


def _is_open(descriptor: int, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False
