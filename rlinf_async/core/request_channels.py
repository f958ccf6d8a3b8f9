"""Request channels of several nodes: the nodes that have one, and the channel that a rank takes from next.

Theory of operation. With level 2 on, any inference rank may answer any request, but a request that leaves its
node costs another node's channel and the network. So where all nodes with env workers have inference ranks,
and the other way round, each of them is a loop of its own (D-VLA replicates its topology per node, section
3): it has a channel, where its env workers ask, and its ranks take. An env worker or rank without a channel
on its node uses the first one, that of the driver's node, without which a run ends anyway. Where simulators
and inference are on different nodes, no division of the ranks fits, and all use the first channel.

A rank is at home at one channel, and helps the others where they do not keep up. The ranks of a channel keep
up as long as no request waits for more than a forward pass: a busy rank takes it with its next batch. So
a rank looks at another channel when its own has had nothing for the time of a pass, and takes there only if
the oldest request has waited for as long. It stays with a channel that had such requests, and looks at home
in between; after a look in vain it waits at home for twice as long as before. A rank with work at home looks
elsewhere after every `BATCHES_BETWEEN_LOOKS` batches, so that no channel is left without a rank.

A rank has one take open at a time, so that no request is handed to a rank that works on others. Thieves of
work-stealing schedulers choose their victims at random (Blumofe and Leiserson 1999); here a rank goes
around, from a place of its own, so that a run can be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

FIRST_PASS_S = 0.1
"""Assumed seconds of a forward pass before the first one."""
SHORTEST_PASS_S = 0.005
"""Passes count as no shorter: a look at another channel costs two messages."""
LONGEST_PATIENCE_S = 1.0
"""Seconds that a rank waits at home at most before it looks elsewhere, if its passes are shorter."""
MOST_DOUBLINGS = 5
"""Times that looks in vain double the wait before the next one."""
BATCHES_BETWEEN_LOOKS = 32
PASS_WEIGHT = 1 / 8
"""The weight of a pass in the mean of all passes."""


def channel_nodes(
    first: str, *, env: Sequence[str], inference: Sequence[str], barrier: bool = False
) -> list[str]:
    """Return the nodes that have a request channel of their own; `first`, the driver's node, comes first.

    Args:
        env, inference: the nodes of the env workers and of the inference ranks, by rank.
        barrier: True if a batch waits for the shards of all nodes, as with level 2 off.
    """
    if barrier or set(env) != set(inference):
        return [first]
    return [first, *(node for node in dict.fromkeys(env) if node != first)]


@dataclass(frozen=True, slots=True)
class Take:
    """A take from a channel, by its number: it ends after `wait_s` seconds without a batch, and gets requests
    of which the oldest has waited for `waited_s` seconds.
    """

    channel: int
    wait_s: float = math.inf
    waited_s: float = 0.0


class TakeOrder:
    """The takes of one inference rank; see above.

    A pure state machine: the caller makes each take that `next` names, and tells what it has brought.
    """

    def __init__(self, *, channels: int, home: int, first: int = 0) -> None:
        """`first` shifts the channel that is looked at first: ranks of a node give their numbers."""
        if not 0 <= home < channels:
            raise ValueError(f"home={home} is none of {channels} channels")
        self.home = home
        others = [channel for channel in range(channels) if channel != home]
        start = first % len(others) if others else 0
        self._others = others[start:] + others[:start]
        """The other channels, the next to be looked at first."""
        self._step: Literal["wait", "glance", "look"] = "wait"
        """Next it waits at home, or takes there what waits, or looks elsewhere."""
        self._batches = self._in_vain = 0
        """Batches of its own channel, and looks in vain, in a row."""
        self._pass_s: float | None = None

    @property
    def pass_s(self) -> float:
        """The mean seconds of a forward pass of this rank; the last passes count most."""
        return max(FIRST_PASS_S if self._pass_s is None else self._pass_s, SHORTEST_PASS_S)

    def passed(self, seconds: float) -> None:
        """Note the duration of a forward pass."""
        before = seconds if self._pass_s is None else self._pass_s
        self._pass_s = before + PASS_WEIGHT * (seconds - before)

    def next(self, unanswered: Collection[int] = ()) -> Take:
        """The next take. None is made at another channel of `unanswered`, which owes the answer to one."""
        if not self._others:
            return Take(self.home)
        other = next((channel for channel in self._others if channel not in unanswered), None)
        if self._step == "look" and other is not None:
            return Take(other, wait_s=0.0, waited_s=self.pass_s)
        return Take(self.home, wait_s=0.0 if self._step == "glance" else self._patience_s)

    def brought(self, take: Take, *, batch: bool) -> None:
        """Note whether a take has brought a batch; no answer within `pass_s` counts as none."""
        if take.channel == self.home:
            self._batches = self._batches + 1 if batch else 0
            self._step = "wait" if batch and self._batches < BATCHES_BETWEEN_LOOKS else "look"
            return
        self._batches = 0
        self._in_vain = 0 if batch else self._in_vain + 1
        self._step = "glance" if batch else "wait"
        if not batch and take.channel in self._others:
            self._others.remove(take.channel)
            self._others.append(take.channel)

    def leave(self, channel: int) -> None:
        """Take no more from another channel, which is lost."""
        self._others = [other for other in self._others if other != channel]

    @property
    def _patience_s(self) -> float:
        """Seconds without a request at home, after which the rank looks elsewhere."""
        longest_s = max(self.pass_s, LONGEST_PATIENCE_S)
        return min(self.pass_s * 2.0 ** min(self._in_vain, MOST_DOUBLINGS), longest_s)
