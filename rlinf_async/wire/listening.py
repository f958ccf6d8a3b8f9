"""All places where processes of a run listen: nobody listens without one, and `explain` says them."""

from __future__ import annotations

from enum import Enum
from typing import Any

LEARNER_RANKS = "learner ranks"
SCORED_FOR = "learner ranks that have pieces scored"


class Listening(Enum):
    """A place: who listens there, what others get or leave there, and whether other nodes may connect."""

    REQUESTS = ("the request channel",), "requests"
    PACE = ("the coordinator",), "the pace of rollouts and batches"
    ROLLOUTS = (LEARNER_RANKS,), "rollouts"
    # Rank 0 alone sends: the others take part in gathering shards.
    WEIGHTS = ("learner rank 0",), "new weights"
    MIRRORED_WEIGHTS = ("inference ranks",), "new weights", False
    ASKED_WITH = ("env workers", SCORED_FOR), "the data of requests"
    ANSWERS = ("env workers", SCORED_FOR), "answers"
    LARGE_ROLLOUTS = ("env workers",), "large rollouts"

    def __init__(self, listeners: tuple[str, ...], content: str, other_nodes: bool = True) -> None:
        self.listeners, self.content, self.other_nodes = listeners, content, other_nodes

    @property
    def words(self) -> str:
        """The place, in a sentence."""
        return f"{' or '.join(self.listeners)} for {self.content}"

    @property
    def socket_name(self) -> str:
        """The beginning of the names of its unix sockets, which are of Linux's abstract ones."""
        return f"rlinf-async-{self.name.lower().replace('_', '-')}-"


def places(*, inference_scores: bool) -> list[dict[str, Any]]:
    """Who listens in a run, and for what, as plain data.

    Args:
        inference_scores: True if learner ranks have pieces scored by inference.
    """
    return [
        {
            "who": LEARNER_RANKS if listener == SCORED_FOR else listener,
            "what": place.content,
            "other_nodes": place.other_nodes,
        }
        for place in Listening
        for listener in place.listeners
        if inference_scores or listener != SCORED_FOR
    ]
