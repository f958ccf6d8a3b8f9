"""Parts that fail and are started again: how often they may, and which of their calls still count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

MAX_FAILED_SAVES = 3
"""Tries in a row to write a checkpoint, or the last policy, that may fail before a run ends."""
FIRST_SAVE_WAIT_S = 10.0


def save_wait_s(failed: int) -> float:
    """Seconds before the next try to save, after so many that have failed in a row: 10, 20, 40 ..."""
    return FIRST_SAVE_WAIT_S * 2.0 ** min(failed - 1, 10)


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
        self._restart_times: deque[float] = deque()

    def take(self, now: float) -> float | None:
        """Seconds to wait before a restart that is due `now`; None if there have been too many."""
        while self._restart_times and now - self._restart_times[0] >= self.window_s:
            self._restart_times.popleft()
        if len(self._restart_times) >= self.most:
            return None
        # An exponent beyond all patience would not be a number any more.
        wait = min(self._longest_wait_s, self._first_wait_s * 2.0 ** min(len(self._restart_times), 64))
        self._restart_times.append(now)
        return wait


class Generations:
    """The present life of each member of a group, counted from 0.

    A process that dies may have sent calls that arrive after its death is known. Every call bears the
    generation of its sender, and those of earlier ones are void.

    One thing of the dead may count: the answer of an inference rank that had taken a request while it lived.
    It goes past those who keep generations, straight to the asker. If that still waits, and the answer is the
    first, it counts: it bears the version that made it, by which the buffer judges its rollout.
    """

    def __init__(self) -> None:
        self._present: dict[int, int] = {}

    def begin(self, members: Iterable[int], generation: int) -> None:
        """Whatever `members` were before is dead; only `generation` and later ones count."""
        for member in members:
            # Never back: the word of one death may arrive after that of a later one.
            self._present[member] = max(generation, self._present.get(member, 0))

    def lives(self, member: int, generation: int) -> bool:
        """Return True if a call of that `generation` of `member` counts."""
        return generation >= self._present.get(member, 0)
