"""Parts of a run that fail and are started again: how often they may fail, and which of their calls count."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

MAX_FAILED_SAVES = 3
"""Failed attempts in a row to write a checkpoint, or the last policy, after which a run ends."""
FIRST_SAVE_WAIT_S = 10.0


def save_wait_s(failures: int) -> float:
    """Seconds before the next attempt to save, after `failures` in a row: 10, 20, 40 ..."""
    return FIRST_SAVE_WAIT_S * 2.0 ** min(failures - 1, 10)


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
        """Seconds to wait before a restart that is due `now`; None if the budget is spent."""
        while self._restart_times and now - self._restart_times[0] >= self.window_s:
            self._restart_times.popleft()
        if len(self._restart_times) >= self.most:
            return None
        # The exponent is cut, as a larger one would overflow a float.
        wait = min(self._longest_wait_s, self._first_wait_s * 2.0 ** min(len(self._restart_times), 64))
        self._restart_times.append(now)
        return wait


class Generations:
    """The present generation of each member of a group, from 0: a process that replaces a dead one has the
    next generation.

    Calls of a process may arrive after its death is known. Every call carries the generation of its sender;
    calls of earlier generations are ignored.

    One message of a dead process may count: the answer of an inference rank to a request that it took while
    it lived. The rank sends the answer straight to the asker, which checks no generation and takes the first
    answer. The answer carries the version that made it, so that the buffer still checks the staleness of its
    rollout.
    """

    def __init__(self) -> None:
        self._present: dict[int, int] = {}

    def begin(self, members: Iterable[int], generation: int) -> None:
        """The earlier processes of `members` are dead: only calls of `generation` or later ones count."""
        for member in members:
            # Never lowered: the report of a death may arrive after that of a later death.
            self._present[member] = max(generation, self._present.get(member, 0))

    def lives(self, member: int, generation: int) -> bool:
        """Return True if a call of that `generation` of `member` counts."""
        return generation >= self._present.get(member, 0)
