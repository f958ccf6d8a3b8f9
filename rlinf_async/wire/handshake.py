"""The handshake of a connection: each end proves that it knows the token, without sending the token.

1. The listening end sends a nonce.
2. The connecting end sends its own nonce and a proof.
3. The listening end sends its proof.

A proof is the HMAC, with the token as the key, of both nonces and of the sender's role. It is of no use on
another connection, nor to a process that has read it. This module does no I/O: bytes come in and go out.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal

Role = Literal["listens", "connects"]

NONCE_BYTES = 32
PROOF_BYTES = 32
DIGEST = "sha256"


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
