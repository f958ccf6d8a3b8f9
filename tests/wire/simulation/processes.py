"""Processes that share one virtual event loop, each with a context of its own, and die at any moment."""

import asyncio
import contextvars
import heapq
import os
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from rlinf_async.lab.virtual.clock import IDLE_TURNS, VirtualLoop

PROCESS = contextvars.ContextVar("process")
"""The process on whose behalf the loop runs: tasks and callbacks hand it on to those that they begin."""


@dataclass(eq=False)
class Process:
    """One life of a process on a node."""

    name: str
    node: str
    machine: str
    """What it maps memory on: that of its node, or one of its own where memory is hidden from it."""
    number: int
    slowness: float = 1.0
    dead: bool = False
    ends: dict = field(default_factory=dict)
    """Of its connections, in the order of their beginning, as keys; so is `listening`."""
    listening: dict = field(default_factory=dict)
    files: list = field(default_factory=list)
    """Memory files, as descriptor and inode."""
    late: bool = False
    """What it says takes as long as a message may take."""
    fuse: int = 0
    """Messages until `at_its_end` is called, if any."""
    last_word: bytes = b""
    """What a message has in it behind which `at_its_end` is called, if any."""
    at_its_end: object = None
    stuck: tuple = ()
    """Where, and for how many seconds, new weights are held up next, if at all."""

    def __post_init__(self):
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def burn(self, data=b""):
        """A message is heard, or `data` sent."""
        if self.last_word and self.last_word in data:
            self.last_word = b""
            asyncio.get_running_loop().call_soon(self.at_its_end)
        if self.fuse:
            self.fuse -= 1
            if not self.fuse:
                asyncio.get_running_loop().call_soon(self.at_its_end)

    async def be_stuck(self, where):
        """Wait, if this process is held up there."""
        if self.stuck and self.stuck[0] == where:
            (_, seconds), self.stuck = self.stuck, ()
            await asyncio.sleep(seconds)

    def run(self, function, *arguments):
        """Do something as this process, at once."""
        return self.context.run(function, *arguments)

    def start(self, coroutine):
        """Do something as this process, beside all else."""
        return asyncio.get_running_loop().create_task(coroutine, context=self.context.copy())

    def cancel_tasks(self):
        """End what it does, in the order in which that began."""
        mine = [task for task in asyncio.all_tasks() if task.process is self]
        for task in sorted(mine, key=lambda task: task.number):
            task.cancel()

    def give_memory_back(self):
        """As the kernel does: the numbers remain, and name something else."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, inode in self.files:
            with suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def close_memory(self):
        """At the end of a schedule, whose processes share the descriptors of one."""
        for descriptor, inode in self.files:
            with suppress(OSError):
                if os.fstat(descriptor).st_ino in (inode, NOTHING):
                    os.close(descriptor)


NOTHING = os.stat(os.devnull).st_ino


class Due:
    """What the loop does next, or at a time: asyncio's handle without what only its debugging needs."""

    __slots__ = ("arguments", "callback", "context")

    def __init__(self, callback, arguments, context):
        self.callback, self.arguments = callback, arguments
        self.context = contextvars.copy_context() if context is None else context

    def cancel(self):
        self.callback = self.arguments = None

    def cancelled(self):
        return self.callback is None


class NumberedTask(asyncio.Task):
    """A task of a process, or of none, whose place in a set does not depend on where it lies in memory."""

    def __init__(self, coro, *, number, process, **options):
        # First: asyncio puts a task into its set of all tasks at once.
        self.number, self.process = number, process
        super().__init__(coro, **options)

    def __hash__(self):
        return self.number


class NumberedFuture(asyncio.Future):
    """As `NumberedTask`."""

    number = 0

    def __hash__(self):
        return self.number


class ProcessLoop(VirtualLoop):
    """A virtual event loop whose tasks are of processes, and whose sockets are those of a network.

    It never asks the system for anything: nothing comes from outside, and no other thread has work for it. So
    a turn is what asyncio's is without that: what is due joins what is ready, and what was ready then runs.
    """

    def __init__(self):
        super().__init__()
        self._numbers, self.turns, self._idle_turns = count(), 0, 0
        self._timers = []
        """A heap of the time, a number and the handle."""

    def _run_once(self):
        self._turn()
        while not self._stopping:
            self._turn()

    def _turn(self):
        ready, timers, clock = self._ready, self._timers, self._clock
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        self.turns += 1
        self._idle_turns += 1
        if not ready and not self._stopping:
            if not timers:
                raise AssertionError("everybody waits, and nothing will happen any more")
            clock.now, self._idle_turns = max(clock.now, timers[0][0]), 0
        if self._idle_turns > IDLE_TURNS:
            raise AssertionError("everybody is busy, and time does not move on")
        while timers and timers[0][0] <= clock.now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            due = ready.popleft()
            if due.callback is not None:
                try:
                    due.context.run(due.callback, *due.arguments)
                except Exception as error:  # noqa: BLE001 asyncio's loop goes on, too
                    told = {"message": f"Exception in callback {due.callback}", "exception": error}
                    self.call_exception_handler(told)

    def call_at(self, when, callback, *arguments, context=None):
        due = Due(callback, arguments, context)
        heapq.heappush(self._timers, (when, next(self._numbers), due))
        return due

    def call_later(self, delay, callback, *arguments, context=None):
        return self.call_at(self._clock.now + delay, callback, *arguments, context=context)

    def call_soon(self, callback, *arguments, context=None):
        due = Due(callback, arguments, context)
        self._ready.append(due)
        return due

    call_soon_threadsafe = call_soon

    def create_task(self, coro, *, context=None, **options):
        process = PROCESS.get(None) if context is None else context.get(PROCESS)
        number = next(self._numbers)
        return NumberedTask(coro, number=number, process=process, loop=self, context=context, **options)

    def create_future(self):
        future = NumberedFuture(loop=self)
        future.number = next(self._numbers)
        return future

    def add_reader(self, sock, callback, *arguments):
        if hasattr(sock, "when_readable"):
            sock.when_readable(callback, *arguments)
        else:
            super().add_reader(sock, callback, *arguments)

    def remove_reader(self, sock):
        if hasattr(sock, "when_readable"):
            sock.when_readable(None)
            return True
        return super().remove_reader(sock)

    async def sock_connect(self, sock, place):
        await sock.connect(place)

    async def create_connection(self, factory, *, sock):
        protocol = factory()
        await sock.end.attach(protocol)
        return sock.end, protocol

    async def create_unix_connection(self, factory, *, sock):
        return await self.create_connection(factory, sock=sock)

    async def connect_accepted_socket(self, factory, sock):
        return await self.create_connection(factory, sock=sock)
