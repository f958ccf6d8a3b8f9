"""A second network on this machine, and a wire to it that can be cut: network namespaces of Linux.

A socket belongs to the network in which it was made, and a process to the one in which it was started. The
second network is gone with the last process in it, whatever became of who has made it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.nodes.machines import call

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


class Wire:
    """Joins this network, at address `here`, to another, at address `there`."""

    def __init__(self) -> None:
        """
        Raises:
            OSError: this process may not make networks.
        """
        number = os.getpid() % 250 + 1
        self.here, self.there = f"10.88.{number}.1", f"10.88.{number}.2"
        end = f"wire{os.getpid()}"
        self._here = os.open("/proc/self/ns/net", os.O_RDONLY)
        _succeed(LIBC.unshare(CLONE_NEWNET))
        self._there = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            # The other end is put into the network of our parent, which is the one that we have left.
            call("ip", "link", "add", "eth0", "type", "veth", "peer", "name", end, "netns", str(os.getppid()))
            call("ip", "address", "add", f"{self.there}/30", "dev", "eth0")
            for name in ("lo", "eth0"):
                call("ip", "link", "set", name, "up")
        finally:
            _succeed(LIBC.setns(self._here, CLONE_NEWNET))
        call("ip", "address", "add", f"{self.here}/30", "dev", end)
        call("ip", "link", "set", end, "up")

    @contextmanager
    def other_end(self) -> Iterator[None]:
        """The block in which this thread is in the other network."""
        _succeed(LIBC.setns(self._there, CLONE_NEWNET))
        try:
            yield
        finally:
            _succeed(LIBC.setns(self._here, CLONE_NEWNET))

    def cut(self) -> None:
        """From now on nothing arrives at either end, and nobody is told."""
        with self.other_end():
            call("ip", "link", "set", "eth0", "down")

    def close(self) -> None:
        os.close(self._here)
        os.close(self._there)


def _succeed(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
