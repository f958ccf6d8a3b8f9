"""Processes that die and are started again: whose calls still count."""

from __future__ import annotations

from collections.abc import Iterable


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
