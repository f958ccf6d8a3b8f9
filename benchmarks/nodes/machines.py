"""Machines made of Linux's namespaces: a network, processes, mounts, `/dev/shm` and a name of their own.

They hang on one switch, and all of it is gone with the processes in it, whatever became of who has made it.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PREFIX = "192.0.2"
"""Of addresses for documentation, which nothing else has."""
BURST, LATENCY = "128kb", "50ms"
INTERFACE = "eth0"
READY = "ready"
IDENTITY = "/proc/sys/kernel/random/boot_id"
"""The name by which processes of one machine know each other."""
BEGINS = """
hostname machine-{number}
mount -t tmpfs shm /dev/shm
mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray
cat /proc/sys/kernel/random/uuid > /dev/shm/identity && mount --bind /dev/shm/identity {identity}
ip link set lo up
echo {ready}
exec sleep infinity
"""


class Space:
    """Namespaces that last as long as their first process."""

    def __init__(self, begins: str, *kinds: str) -> None:
        """
        Raises:
            OSError: this process may not make them.
        """
        options = ["--net", "--kill-child=KILL", "--fork", *kinds]
        self._first = subprocess.Popen(
            ["unshare", *options, "sh", "-e", "-c", begins],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._first.stdout is not None
        assert self._first.stderr is not None
        if self._first.stdout.readline().strip() != READY:
            raise OSError(f"no namespaces: {self._first.stderr.read().strip()}")
        number = self._first.pid
        (child,) = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        self.process = int(child)

    def within(self) -> list[str]:
        """The words before a command that runs it here."""
        return ["nsenter", f"--target={self.process}", "--net", "--mount", "--pid", "--uts"]

    def call(self, *command: str) -> str:
        """What a command has printed that ran here.

        Raises:
            OSError: it has failed.
        """
        return call(*self.within(), *command)

    def close(self) -> None:
        """Kill all that is in it, at once."""
        self._first.kill()
        self._first.communicate()


class Machine(Space):
    """One that the others reach at `address`."""

    def __init__(self, number: int) -> None:
        begins = BEGINS.format(number=number, identity=IDENTITY, ready=READY)
        super().__init__(begins, "--mount", "--uts", "--pid", "--mount-proc")
        self.address = f"{PREFIX}.{number + 1}"

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.within(), *command], text=True, **options)

    def traffic(self) -> tuple[int, int]:
        """The bytes that its link has sent and received so far."""
        folder = f"/sys/class/net/{INTERFACE}/statistics"
        # Of the network in which this file system was mounted, which is not that of the machine.
        mounted = f"mount -t sysfs sysfs /sys && cat {folder}/tx_bytes {folder}/rx_bytes"
        sent, received = self.call("unshare", "--mount", "sh", "-c", mounted).split()
        return int(sent), int(received)

    def cut(self) -> None:
        """From now on nothing arrives or leaves, and nobody is told."""
        self.call("ip", "link", "set", INTERFACE, "down")


@contextmanager
def machines(count: int, *, rate: str | None = None) -> Iterator[list[Machine]]:
    """So many, on a switch that sends each of them, and takes from each, at most `rate` as `tc` says it.

    Raises:
        OSError: this process may not make them.
    """
    with ExitStack() as stack:
        switch = Space(f"ip link add br0 type bridge; ip link set br0 up; echo {READY}; exec sleep infinity")
        stack.callback(switch.close)
        made: list[Machine] = []
        for number in range(count):
            made.append(machine := Machine(number))
            stack.callback(machine.close)
            port = f"port{number}"
            peer = ["type", "veth", "peer", "name", INTERFACE, "netns", str(machine.process)]
            switch.call("ip", "link", "add", port, *peer)
            switch.call("ip", "link", "set", port, "master", "br0", "up")
            machine.call("ip", "address", "add", f"{machine.address}/24", "dev", INTERFACE)
            machine.call("ip", "link", "set", INTERFACE, "up")
            if rate is not None:
                shape = ["root", "tbf", "rate", rate, "burst", BURST, "latency", LATENCY]
                machine.call("tc", "qdisc", "add", "dev", INTERFACE, *shape)
                switch.call("tc", "qdisc", "add", "dev", port, *shape)
        yield made


def unavailable(*, programs: Sequence[str] = ("ip", "unshare", "nsenter")) -> str | None:
    """Why there are no machines here; None if there are."""
    for program in programs:
        if shutil.which(program) is None:
            return f"no network namespaces: the command {program} is not installed"
    try:
        with machines(1):
            return None
    except OSError as error:
        return f"no network namespaces: {error}"


def call(*command: str) -> str:
    """What a command has printed.

    Raises:
        OSError: it has failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
