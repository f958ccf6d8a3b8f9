"""How often a part may fail, and the wait before each restart."""

from __future__ import annotations

from collections import deque

MAX_FAILED_SAVES = 3
"""Checkpoints in a row, or tries to write the last policy, that may fail before a run ends."""


class RestartBudget:
    """At most `most` restarts within any `window_s` seconds; pure: the caller passes the time in.

    Each restart within a window waits twice as long as the one before.
    """

    def __init__(
        self, most: int, window_s: float, *, first_wait_s: float = 0.5, longest_wait_s: float = 30.0
    ) -> None:
        self.most = most
        self.window_s = window_s
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._taken: deque[float] = deque()

    def take(self, now: float) -> float | None:
        """Seconds to wait before a restart that is due `now`; None if there have been too many."""
        while self._taken and now - self._taken[0] >= self.window_s:
            self._taken.popleft()
        if len(self._taken) >= self.most:
            return None
        # An exponent beyond all patience would not be a number any more.
        wait = min(self._longest_wait_s, self._first_wait_s * 2.0 ** min(len(self._taken), 64))
        self._taken.append(now)
        return wait
