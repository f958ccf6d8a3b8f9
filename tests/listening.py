"""Sockets on which a process and its descendants listen."""

import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

LISTENS = "0A"
LISTENS_AT_NAME = "00010000"
"""The flag of a unix socket that waits for connections."""
FAMILIES = {"tcp": socket.AF_INET, "tcp6": socket.AF_INET6}


def beyond_loopback(process: int) -> set[str]:
    """Who listens where other machines may reach it: `name of the program address`."""
    return {
        f"{name} {address}" for name, address in listening(process) if not ip_address(address).is_loopback
    }


def listening(process: int) -> Iterator[tuple[str, str]]:
    """The name of the program and the address of each socket that waits for connections."""
    addresses = dict(_sockets())
    for number in [process, *descendants(process)]:
        for file in _files(Path(f"/proc/{number}/fd")):
            if file in addresses:
                yield _name(number), addresses[file]


def listening_at_names(process: int) -> Iterator[tuple[int, str]]:
    """The number of the process and the abstract name of each unix socket that waits for connections."""
    names = dict(_named_sockets())
    for number in [process, *descendants(process)]:
        for file in _files(Path(f"/proc/{number}/fd")):
            if file in names:
                yield number, names[file]


def descendants(process: int) -> Iterator[int]:
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found = [int(child) for child in children.read_text().split()]
        except OSError:  # the thread has ended
            continue
        for child in found:
            yield child
            yield from descendants(child)


def _files(folder: Path) -> Iterator[str]:
    try:
        links = list(folder.iterdir())
    except OSError:  # the process has ended
        return
    for link in links:
        try:
            yield str(link.readlink())
        except OSError:
            continue


def _sockets() -> Iterator[tuple[str, str]]:
    for table, family in FAMILIES.items():
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                yield f"socket:[{fields[9]}]", _address(fields[1].partition(":")[0], family)


def _named_sockets() -> Iterator[tuple[str, str]]:
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENS_AT_NAME and fields[-1].startswith("@"):
            yield f"socket:[{fields[6]}]", fields[-1].removeprefix("@")


def _address(text: str, family: int) -> str:
    """Words of four bytes in the order of the processor."""
    raw = bytes.fromhex(text)
    written = socket.inet_ntop(family, b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
    return written.removeprefix("::ffff:")


def _name(number: int) -> str:
    """Ray names its processes itself, `ray::Class.method`; others have a program, and perhaps a script."""
    words = Path(f"/proc/{number}/cmdline").read_text().rstrip("\0 ").split("\0")
    if words[0].startswith("ray::"):
        return words[0].partition(".")[0]
    program = Path(words[0]).name
    scripts = [Path(word).name for word in words[1:] if word.endswith(".py")]
    return scripts[0] if program.startswith("python") and scripts else program
