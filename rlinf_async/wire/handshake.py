"""The first words of a connection, by which each end shows that it knows the token, which nobody says.

In the order of time: the listener says a nonce; who connects answers with a nonce of its own and a proof; the
listener answers with its own proof. A proof is the HMAC of both nonces and of the role by the token: it is
worth nothing on another connection, and to nobody who has heard it. Pure: bytes come in and go out.
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
    """The other end does not know the token."""


class Handshake:
    """One end of the first words; `done` once the other end has shown that it knows the token."""

    def __init__(self, token: bytes, role: Role) -> None:
        self._token, self._role = token, role
        self._own = secrets.token_bytes(NONCE_BYTES)
        self._theirs: bytes | None = None
        self.done = False

    def begin(self) -> bytes:
        """The bytes that this end sends before it has heard any."""
        return self._own if self._role == "listens" else b""

    @property
    def awaited(self) -> int:
        """The number of bytes that come next from the other end."""
        if self._role == "listens":
            return NONCE_BYTES + PROOF_BYTES
        return NONCE_BYTES if self._theirs is None else PROOF_BYTES

    def hear(self, words: bytes) -> bytes:
        """Take the `awaited` bytes, and return those that this end sends next.

        Raises:
            NotKnown: they prove nothing; nothing more is to be read or sent.
        """
        if self._theirs is None:
            self._theirs, words = words[:NONCE_BYTES], words[NONCE_BYTES:]
        if self._role == "connects" and not words:
            return self._own + self._proof("connects")
        other: Role = "connects" if self._role == "listens" else "listens"
        # In constant time: the time of a comparison that stops early tells how much of a proof is right.
        if not hmac.compare_digest(words, self._proof(other)):
            raise NotKnown("the other end has not shown that it knows the token")
        self.done = True
        return self._proof("listens") if self._role == "listens" else b""

    def _proof(self, role: Role) -> bytes:
        """What the end of this role shows."""
        theirs = self._theirs or b""
        listening, connecting = (self._own, theirs) if self._role == "listens" else (theirs, self._own)
        return hmac.digest(self._token, role.encode() + listening + connecting, DIGEST)
