"""State of the whole process, which environments that live in it may not change.

On other hosts environments have processes of their own, and may change them. Here a policy computes in the
same process, by torch's default type, and event loops wait by their descriptors. So this state is checked
after each call of the environments: a change is undone, and the environments have failed. What cannot be
undone ends the run.

The check cannot tell which of several environments that step at the same time made a change; those are blamed
that were checked first, and all are of one class.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from selectors import DefaultSelector, SelectorKey
from threading import Lock
from typing import TypeVar

import torch

from rlinf_async.core.failures import FailedForGood

T = TypeVar("T")

FIRST_SPARE = 512
"""Copies of descriptors have at least this number: who closes what is not theirs closes low ones."""
STANDARD_STREAMS = (0, 1, 2)
LONGEST_WAIT_S = 5.0
"""A wait by a descriptor that is closed meanwhile does not end by it: so much later the loop looks again."""


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
        self._culprit = "the environments"

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
        self._culprit = culprit
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
        if lost := [each for each in closed if not _is_open(*self._spares[each])]:
            self._renew(lost)
        for each in closed:
            if each not in lost:
                os.dup2(self._spares[each][0], each, inheritable=False)
        if closed:
            # Who has called a loop meanwhile has written to a closed descriptor, which asyncio passes over:
            # the loop would sleep on, beside what it was to do.
            for loop in self._loops:
                loop._write_to_self()  # type: ignore[attr-defined]
        return closed

    def _renew(self, lost: list[int]) -> None:
        """Give loops new descriptors where the copies were closed, too: the run has to end, and ends by
        them."""
        for each in STANDARD_STREAMS:
            with suppress(OSError):
                os.fstat(each)
                continue
            # What is opened next would have this number, and be written to by whoever prints.
            null = os.open(os.devnull, os.O_RDWR)
            if null != each:
                os.dup2(null, each)
                os.close(null)
        numbers = ", ".join(map(str, sorted(lost)))
        for loop in self._loops:
            if not loop.is_closed() and not set(lost).isdisjoint(loop.own):
                loop.renew(
                    f"{self._culprit} have closed descriptors of the run ({numbers}) and the copies that it "
                    "keeps of them: what was open cannot be put back"
                )
        for each in lost:
            del self._spares[each]

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
    loss: str | None = None
    """What was lost, in words, until it is raised."""

    def __init__(self, process: WholeProcess) -> None:
        super().__init__()
        self._process = process

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        events: list[tuple[SelectorKey, int]] = []
        try:
            events = super().select(LONGEST_WAIT_S if timeout is None else min(timeout, LONGEST_WAIT_S))
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL):  # closed, or now of something else
                raise
            # Environments have closed it in their thread, which has not come to the check behind their call.
            self._process.reopen()
        if self.loss is not None:
            loss, self.loss = self.loss, None
            raise FailedForGood(loss)
        return events

    def register_again(self) -> None:
        """Wait for the same by a descriptor that is new, and has the same number."""
        for key in list(self.get_map().values()):
            self.unregister(key.fileobj)
            with suppress(OSError):  # it is closed, too
                self.register(key.fileobj, key.events, key.data)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, process: WholeProcess) -> None:
        self._watched = selector = _Selector(process)
        super().__init__(selector)
        # The end of its pipe that others write into is known to nobody else.
        # Taken when the loop is new: later the map has descriptors of others, which close their own.
        self.own = [selector.fileno(), *selector.get_map(), self._csock.fileno()]  # type: ignore[attr-defined]
        self._process = process
        process.hold(self.own)

    def renew(self, loss: str) -> None:
        """Go on with descriptors that are new, so that the loop can end; `loss` is raised in it, once."""
        selector, near, far = self.own
        fresh = (DefaultSelector(), *socket.socketpair())
        # Out of the way first: what is new may have got the number of what another of them replaces.
        free = max(FIRST_SPARE, *self.own) + 1
        copies = [fcntl.fcntl(each.fileno(), fcntl.F_DUPFD_CLOEXEC, free) for each in fresh]
        for each in fresh:
            each.close()
        for copy, number in zip(copies, (selector, near, far), strict=True):
            os.dup2(copy, number, inheritable=False)
            os.close(copy)
        os.set_blocking(near, False)
        os.set_blocking(far, False)
        self._watched.register_again()
        self._watched.loss = loss

    def close(self) -> None:
        if not self.is_closed():
            self._process.let_go(self.own)
        super().close()


def _is_open(descriptor: int, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False
