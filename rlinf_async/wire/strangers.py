"""Who connects to a process of a run and does not belong to it: other accounts, and who knows no token."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Hashable
from typing import Protocol

CREDENTIALS_FORMAT = struct.Struct("3i")
"""What Linux says of the other end of a unix socket: process, user, group."""
MAX_SILENT = 256
"""Connections from other machines that may be open and have not yet shown that they know the token."""


def account_of(connected: socket.socket) -> int:
    """The user of the process at the other end of a unix socket, as it was when it connected."""
    content = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS_FORMAT.size)
    _, user, _ = CREDENTIALS_FORMAT.unpack(content)
    return int(user)


def stranger_by_account(connected: socket.socket) -> str | None:
    """The words for the other end of a unix socket, if it is of another account than this process."""
    account = account_of(connected)
    return None if account == os.geteuid() else f"a process of the account {account}"


class RecordError(Protocol):
    """Writes a sentence into the record of the run."""

    def __call__(self, *, error: str) -> None: ...


class Strangers:
    """Those that this process has refused: the first of each is recorded, however many follow."""

    def __init__(self) -> None:
        self._record: RecordError | None = None
        self._refused: dict[str, str] = {}

    def record_by(self, record: RecordError) -> None:
        """Record from now on, and what was noted before."""
        self._record = record
        for sentence in self._refused.values():
            record(error=sentence)

    def note(self, who: str, place: str, why: str) -> None:
        """`who` has connected to `place`, and was refused."""
        if f"{who} {place}" in self._refused:
            return
        sentence = f"{who} has connected to {place}, and {why}: it is not read, and neither are others of it"
        self._refused[f"{who} {place}"] = sentence
        if self._record is not None:
            self._record(error=sentence)


STRANGERS = Strangers()
"""The one `Strangers` of this process."""


class Silent:
    """Connections that have not yet shown that they know the token: at most `most`, and above that the oldest
    of the host that has most of them ends, so that no host takes the place of another."""

    def __init__(self, most: int = MAX_SILENT) -> None:
        self._most = most
        self._ends: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        """By connection, in the order in which they came: its host, and what ends it."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, connection: Hashable, host: str, end: Callable[[], None]) -> None:
        """Count a connection of `host`, which `end` ends."""
        self._ends[connection] = host, end
        if len(self._ends) > self._most:
            self.end_one()

    def discard(self, connection: Hashable) -> None:
        """It has spoken, or has gone."""
        self._ends.pop(connection, None)

    def end_one(self) -> None:
        """End the oldest of the host that has most."""
        if not self._ends:
            return
        hosts = [host for host, _ in self._ends.values()]
        most = max(hosts, key=hosts.count)
        oldest = next(connection for connection, (host, _) in self._ends.items() if host == most)
        _, end = self._ends.pop(oldest)
        end()
