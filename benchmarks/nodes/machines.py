"""Machines made of Linux namespaces, each with its own network, processes, mounts, `/dev/shm` and host name.

One virtual switch connects them. Machines and switch disappear with the processes in them, so that nothing is
left to clean up, even if the process that has made them was killed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ADDRESS_PREFIX = "192.0.2"
"""A network that is reserved for documentation (RFC 5737), so that no real machine has these addresses."""
LINK_BURST, LINK_LATENCY = "128kb", "50ms"
INTERFACE_NAME = "eth0"
READY_LINE = "ready"
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
"""File with the kernel's boot id; processes on one machine recognise each other by it."""
INIT_SCRIPT = """
hostname machine-{number}
mount -t tmpfs shm /dev/shm
mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray
cat /proc/sys/kernel/random/uuid > /dev/shm/identity && mount --bind /dev/shm/identity {identity}
ip link set lo up
echo {ready}
exec sleep infinity
"""


class Space:
    """Namespaces that live as long as their first process."""

    def __init__(self, begins: str, *kinds: str) -> None:
        """Make the namespaces and run the script `begins` in them, which prints `READY_LINE` when done.

        Raises:
            OSError: this process may not make namespaces.
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
        if self._first.stdout.readline().strip() != READY_LINE:
            raise OSError(f"no namespaces: {self._first.stderr.read().strip()}")
        number = self._first.pid
        (child,) = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        self.process = int(child)

    def within(self) -> list[str]:
        """Return the `nsenter` prefix that runs a command in these namespaces."""
        return ["nsenter", f"--target={self.process}", "--net", "--mount", "--pid", "--uts"]

    def call(self, *command: str) -> str:
        """Run a command in these namespaces, and return its output.

        Raises:
            OSError: the command has failed.
        """
        return call(*self.within(), *command)

    def close(self) -> None:
        """Kill all processes of the namespaces at once."""
        self._first.kill()
        self._first.communicate()


class Machine(Space):
    """A machine that the others reach at `address`."""

    def __init__(self, number: int) -> None:
        begins = INIT_SCRIPT.format(number=number, identity=BOOT_ID_FILE, ready=READY_LINE)
        super().__init__(begins, "--mount", "--uts", "--pid", "--mount-proc")
        self.address = f"{ADDRESS_PREFIX}.{number + 1}"

    def start(self, *command: str, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.within(), *command], text=True, **options)

    def traffic(self) -> tuple[int, int]:
        """Return the bytes that the machine's link has sent and received so far."""
        folder = f"/sys/class/net/{INTERFACE_NAME}/statistics"
        # /sys shows the network namespace of its mount, so that a new mount is needed here.
        mounted = f"mount -t sysfs sysfs /sys && cat {folder}/tx_bytes {folder}/rx_bytes"
        sent, received = self.call("unshare", "--mount", "sh", "-c", mounted).split()
        return int(sent), int(received)

    def cut(self) -> None:
        """Cut the machine's link: packets are lost without an error to either side."""
        self.call("ip", "link", "set", INTERFACE_NAME, "down")


@contextmanager
def machines(count: int, *, rate: str | None = None) -> Iterator[list[Machine]]:
    """Yield `count` machines on one switch, with links of at most `rate` each way, in the notation of `tc`.

    Raises:
        OSError: this process may not make namespaces.
    """
    with ExitStack() as stack:
        switch = Space(
            f"ip link add br0 type bridge; ip link set br0 up; echo {READY_LINE}; exec sleep infinity"
        )
        stack.callback(switch.close)
        made: list[Machine] = []
        for number in range(count):
            made.append(machine := Machine(number))
            stack.callback(machine.close)
            port = f"port{number}"
            peer = ["type", "veth", "peer", "name", INTERFACE_NAME, "netns", str(machine.process)]
            switch.call("ip", "link", "add", port, *peer)
            switch.call("ip", "link", "set", port, "master", "br0", "up")
            machine.call("ip", "address", "add", f"{machine.address}/24", "dev", INTERFACE_NAME)
            machine.call("ip", "link", "set", INTERFACE_NAME, "up")
            if rate is not None:
                shape = ["root", "tbf", "rate", rate, "burst", LINK_BURST, "latency", LINK_LATENCY]
                machine.call("tc", "qdisc", "add", "dev", INTERFACE_NAME, *shape)
                switch.call("tc", "qdisc", "add", "dev", port, *shape)
        yield made


def unavailable(*, programs: Sequence[str] = ("ip", "unshare", "nsenter")) -> str | None:
    """Return the reason why this system cannot make machines; None if it can."""
    for program in programs:
        if shutil.which(program) is None:
            return f"no network namespaces: the command {program} is not installed"
    try:
        with machines(1):
            return None
    except OSError as error:
        return f"no network namespaces: {error}"


def call(*command: str) -> str:
    """Run a command, and return its output.

    Raises:
        OSError: the command has failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
