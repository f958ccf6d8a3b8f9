"""Who may connect to a process of the run: peers that know its token, and, on this node, of its own account.

Each end of a connection proves that it knows the token, without sending the token:

1. The listening end sends a nonce.
2. The connecting end sends its own nonce and a proof.
3. The listening end sends its proof.

A proof is the HMAC, with the token as the key, of both nonces and of the sender's role. It is of no use on
another connection, nor to a process that has read it. All others are strangers, whose refused connections are
recorded. This module does no I/O on connections: bytes come in and go out.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable, Hashable
from typing import Literal, Protocol

Role = Literal["listens", "connects"]

NONCE_BYTES = 32
PROOF_BYTES = 32
DIGEST = "sha256"
CREDENTIALS_FORMAT = struct.Struct("3i")
"""Linux's `struct ucred` of the peer of a unix socket: process, user, group."""
MAX_SILENT = 256
"""The most open connections from other machines before the end of their handshake."""


class NotKnown(ConnectionError):
    """The peer has not proved that it knows the token."""


class Handshake:
    """One end of a handshake; `done` is True once the peer has proved that it knows the token."""

    def __init__(self, token: bytes, role: Role) -> None:
        self._token, self._role = token, role
        self._own = secrets.token_bytes(NONCE_BYTES)
        self._theirs: bytes | None = None
        self.done = False

    def begin(self) -> bytes:
        """The bytes that this end sends before it has received any."""
        return self._own if self._role == "listens" else b""

    @property
    def awaited(self) -> int:
        """The length of the peer's next message, in bytes."""
        if self._role == "listens":
            return NONCE_BYTES + PROOF_BYTES
        return NONCE_BYTES if self._theirs is None else PROOF_BYTES

    def hear(self, words: bytes) -> bytes:
        """Take a message of `awaited` bytes, and return the next message of this end.

        Raises:
            NotKnown: the proof is wrong; the connection must be closed.
        """
        if self._theirs is None:
            self._theirs, words = words[:NONCE_BYTES], words[NONCE_BYTES:]
        if self._role == "connects" and not words:
            return self._own + self._proof("connects")
        other: Role = "connects" if self._role == "listens" else "listens"
        # Constant time: a comparison that stops early would reveal how much of a proof is right.
        if not hmac.compare_digest(words, self._proof(other)):
            raise NotKnown("the other end has not shown that it knows the token")
        self.done = True
        return self._proof("listens") if self._role == "listens" else b""

    def _proof(self, role: Role) -> bytes:
        """The proof of the end with this role."""
        theirs = self._theirs or b""
        listening, connecting = (self._own, theirs) if self._role == "listens" else (theirs, self._own)
        return hmac.digest(self._token, role.encode() + listening + connecting, DIGEST)


def account_of(connected: socket.socket) -> int:
    """The user ID of the peer of a unix socket, at the time when it connected."""
    content = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS_FORMAT.size)
    _, user, _ = CREDENTIALS_FORMAT.unpack(content)
    return int(user)


def stranger_by_account(connected: socket.socket) -> str | None:
    """A name for the peer of a unix socket if it belongs to another account than this process; else None."""
    account = account_of(connected)
    return None if account == os.geteuid() else f"a process of the account {account}"


class RecordError(Protocol):
    """Writes a sentence into the record of the run."""

    def __call__(self, *, error: str) -> None: ...


class Strangers:
    """The refused connections of this process. Only the first one of each peer is recorded."""

    def __init__(self) -> None:
        self._record: RecordError | None = None
        self._refused: dict[str, str] = {}

    def record_by(self, record: RecordError) -> None:
        """Record refused connections with `record` from now on, and those that were noted before."""
        self._record = record
        for sentence in self._refused.values():
            record(error=sentence)

    def note(self, who: str, place: str, why: str) -> None:
        """Note that `who` has connected to `place`, and was refused for the reason `why`."""
        if f"{who} {place}" in self._refused:
            return
        sentence = f"{who} has connected to {place}, and {why}: the connection is refused"
        self._refused[f"{who} {place}"] = sentence
        if self._record is not None:
            self._record(error=sentence)


STRANGERS = Strangers()
"""The `Strangers` of this process."""


class Silent:
    """The open connections before the end of their handshake, at most `most`.

    A further connection ends the oldest one of the host with the most connections, so that no host can crowd
    out others.
    """

    def __init__(self, most: int = MAX_SILENT) -> None:
        self._most = most
        self._ends: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        """Host and function that ends it, by connection, in the order of arrival."""

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, connection: Hashable, host: str, end: Callable[[], None]) -> None:
        """Count a connection from `host`; `end` closes it."""
        self._ends[connection] = host, end
        if len(self._ends) > self._most:
            self.end_one()

    def discard(self, connection: Hashable) -> None:
        """Forget a connection: its handshake is done, or it has ended."""
        self._ends.pop(connection, None)

    def end_one(self) -> None:
        """End the oldest connection of the host with most of them."""
        if not self._ends:
            return
        hosts = [host for host, _ in self._ends.values()]
        most = max(hosts, key=hosts.count)
        oldest = next(connection for connection, (host, _) in self._ends.items() if host == most)
        _, end = self._ends.pop(oldest)
        end()
