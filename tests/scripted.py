"""An adaptation that follows a script instead of measurements."""

from typing import ClassVar

from rlinf_async.core.adaptation import Event
from rlinf_async.core.guesses import Limits


def scripted(changes):
    """`changes[step]` are the limits after that step; what it has been given is in `seen`."""

    class Scripted:
        seen: ClassVar[list] = []

        def __init__(self, start, **limits):
            self.limits = start

        def step(self, measured):
            self.seen.append(measured)
            if len(self.seen) not in changes:
                return None
            before, self.limits = self.limits, Limits(**changes[len(self.seen)])
            return Event(
                verdict="tried",
                knob="max_staleness",
                before=before.max_staleness,
                after=self.limits.max_staleness,
                guess=0.1,
                gain=None,
                error=0.0,
                because="the script says so",
            )

    return Scripted
