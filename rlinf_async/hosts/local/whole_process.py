"""Guards process-wide state against changes by environments, and by a policy, that run in this process.

On other hosts environments have their own processes, and may change them. Here the policy computes in the
same process, with torch's default type, and the event loop needs its file descriptors. So this state is
checked after each call of the environments, and its settings also after each pass of the policy: a change is
undone, and counts as a failure of the environments, or of the policy. A change that cannot be undone ends the
run.

If several shards step at the same time, the check blames the first one checked, which need not have made the
change; all are of one class. A failure of the environments costs a rebuild, and one of the policy ends the
run. So a pass that ends while environments are at work leaves a change to the check after their call, which
names both.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from selectors import DefaultSelector, SelectorKey
from threading import Lock
from typing import TypeVar

import torch

from rlinf_async.core.failures import FailedForGood

T = TypeVar("T")

FIRST_SPARE_DESCRIPTOR = 512
"""Copies of descriptors have at least this number, or half of a lower limit, as code that closes foreign
descriptors closes low ones."""
STANDARD_STREAMS = (0, 1, 2)
ENVIRONMENTS, POLICY = "the environments", "the policy"
LONGEST_WAIT_S = 5.0
"""The longest wait of an event loop: if its descriptor is closed meanwhile, only this limit ends the wait."""


class WholeProcess:
    """Process-wide settings, as they are at construction, and the descriptors of a run's event loop."""

    def __init__(self) -> None:
        self._dtype, self._recursion = torch.get_default_dtype(), sys.getrecursionlimit()
        self._threads = torch.get_num_threads()
        self._lock = Lock()
        self._spares: dict[int, tuple[int, os.stat_result]] = {}
        """{descriptor: (a copy of it, the status of its file)}."""
        self._reopened_descriptors: list[int] = []
        """Descriptors that were restored and that the next `check` will report."""
        self._loop: _Loop | None = None
        self._culprit = ENVIRONMENTS
        self._at_work: list[str] = []
        """The owners of the calls under way: environments, or the policy."""
        self._passes_unchecked = False
        """True if a pass of the policy has ended since the last check."""

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop of the run, and guard its descriptors until it is closed.

        Its class is fixed here, as environments may have changed asyncio's event loop policy.
        """
        self._loop = _Loop(self)
        return self._loop

    def pin_threads(self) -> None:
        """Have torch use as many threads, in this thread, as at the start of the run."""
        torch.set_num_threads(self._threads)
        torch.get_num_threads()  # the first use in a thread takes the number last set in any thread

    def check(self, culprit: str) -> None:
        """Restore the process-wide state.

        Raises:
            ValueError: it was changed; the message says that `culprit` did it.
        """
        self._culprit = culprit
        settings, passes = list(self._changed_settings()), self._passes_unchecked or POLICY in self._at_work
        self._passes_unchecked = False
        blamed = f"{culprit}, or the policy meanwhile," if settings and passes else culprit
        _refuse(blamed, [*settings, *self._closed_descriptors()])

    def call(self, culprit: Callable[[], str], function: Callable[[], T]) -> T:
        """Return the result of `function` of environments, and `check` the state after it.

        `culprit` returns the name of the environments for the message.
        """
        with self._working(ENVIRONMENTS):
            try:
                result = function()
            except BaseException:
                with suppress(ValueError):  # the environments have failed already
                    self.check("they")
                raise
            self.check(culprit())
        return result

    def compute(self, function: Callable[[], T]) -> T:
        """Return the result of a pass of the policy, and check the settings after it."""
        try:
            with self._working(POLICY):
                result = function()
        except BaseException:
            if ENVIRONMENTS not in self._at_work:
                list(self._changed_settings())  # undone; the policy has failed already
            raise
        if ENVIRONMENTS in self._at_work:
            self._passes_unchecked = True
        else:
            _refuse("its modules", list(self._changed_settings()))
        return result

    def train(self, function: Callable[[], T]) -> T:
        """Return the result of a pass of the learner. The next check finds what it has changed."""
        with self._working(POLICY):
            result = function()
        self._passes_unchecked = True
        return result

    @contextmanager
    def _working(self, owner: str) -> Iterator[None]:
        self._at_work.append(owner)
        try:
            yield
        finally:
            self._at_work.remove(owner)

    def hold(self, descriptors: list[int]) -> None:
        """Guard these descriptors: keep a copy of each."""
        with self._lock:
            for each in descriptors:
                spare = fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _first_spare())
                self._spares[each] = spare, os.fstat(each)

    def let_go(self) -> None:
        """Close the copies, as the loop is about to close its descriptors."""
        with self._lock:
            while self._spares:
                _, (spare, _) = self._spares.popitem()
                with suppress(OSError):
                    os.close(spare)

    def reopen(self) -> None:
        """Restore closed descriptors, for the loop that waits on them; the next `check` reports them."""
        with self._lock:
            self._reopened_descriptors += self._put_back()

    def _put_back(self) -> list[int]:
        closed = [each for each, (_, status) in self._spares.items() if not _is_open(each, status)]
        if lost := [each for each in closed if not self._is_restored(each)]:
            self._renew(lost)
        if closed and self._loop is not None:
            # A wake-up that was written to a closed descriptor is lost, as asyncio ignores that error, and
            # the loop would sleep on with work to do.
            self._loop._write_to_self()  # type: ignore[attr-defined]
        return closed

    def _is_restored(self, descriptor: int) -> bool:
        spare, status = self._spares[descriptor]
        with suppress(OSError):  # another thread may close the copy between these two
            return _is_open(spare, status) and os.dup2(spare, descriptor, inheritable=False) >= 0
        return False

    def _renew(self, lost: list[int]) -> None:
        """Give the loop new descriptors if the copies were closed as well, so that the run can end with an
        error.
        """
        for each in STANDARD_STREAMS:
            with suppress(OSError):
                os.fstat(each)
                continue
            # The next file opened would get this number, and printed text would be written into it.
            null = os.open(os.devnull, os.O_RDWR)
            if null != each:
                os.dup2(null, each)
                os.close(null)
        if self._loop is not None:
            self._loop.renew(
                f"{self._culprit} have closed descriptors of the run ({_listed(lost)}) and its copies of "
                "them: they cannot be restored"
            )
        for each in lost:
            del self._spares[each]

    def _changed_settings(self) -> Iterator[str]:
        if (dtype := torch.get_default_dtype()) is not self._dtype:
            torch.set_default_dtype(self._dtype)
            yield f"set torch's default type to {dtype}, which other code of this process would use, too"
        if (limit := sys.getrecursionlimit()) < self._recursion:  # a higher limit does no harm
            sys.setrecursionlimit(self._recursion)
            yield f"lowered the recursion limit of the whole process to {limit}"

    def _closed_descriptors(self) -> Iterator[str]:
        with self._lock:
            closed, self._reopened_descriptors = {*self._reopened_descriptors, *self._put_back()}, []
        if closed:
            yield f"closed descriptors of the run ({_listed(closed)})"


def _refuse(culprit: str, changes: list[str]) -> None:
    if changes:
        raise ValueError(f"{culprit} have {' and '.join(changes)}; this was undone")


class _Selector(DefaultSelector):
    loss: str | None = None
    """The message of the error that `select` is to raise; None for none."""

    def __init__(self, process: WholeProcess) -> None:
        super().__init__()
        self._process = process

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        events: list[tuple[SelectorKey, int]] = []
        try:
            events = super().select(LONGEST_WAIT_S if timeout is None else min(timeout, LONGEST_WAIT_S))
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.EINVAL):  # closed, or reused for another file
                raise
            # The environments closed the descriptor in their thread, and the check after their call has not
            # run yet.
            self._process.reopen()
        if self.loss is not None:
            loss, self.loss = self.loss, None
            raise FailedForGood(loss)
        return events

    def register_again(self) -> None:
        """Register all keys again, after the selector's descriptor was replaced under the same number."""
        for key in list(self.get_map().values()):
            self.unregister(key.fileobj)
            with suppress(OSError):  # this key's descriptor is closed, too
                self.register(key.fileobj, key.events, key.data)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, process: WholeProcess) -> None:
        self._watched = selector = _Selector(process)
        super().__init__(selector)
        # Read when the loop is new: later its map also has descriptors of other owners. `_csock`, the end of
        # its pipe that wakes it, is in no map.
        self.own = [selector.fileno(), *selector.get_map(), self._csock.fileno()]  # type: ignore[attr-defined]
        self._process = process
        process.hold(self.own)

    def renew(self, loss: str) -> None:
        """Replace the loop's descriptors by new ones, so that it can end; `select` raises `loss` once."""
        selector, near, far = self.own
        fresh = (DefaultSelector(), *socket.socketpair())
        # First to higher numbers: a new descriptor may have the number that another one will take.
        free = max(_first_spare(), *self.own) + 1
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
            self._process.let_go()
        super().close()


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _first_spare() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FIRST_SPARE_DESCRIPTOR if limit < 0 else min(FIRST_SPARE_DESCRIPTOR, limit // 2)


def _is_open(descriptor: int, status: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), status)
    except OSError:
        return False
