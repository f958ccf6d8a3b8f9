"""Every place where a process of a run listens for connections; `explain` lists these places."""

from __future__ import annotations

from enum import Enum
from typing import Any

LEARNER_RANKS = "learner ranks"
SCORED_FOR = "learner ranks that have pieces scored"


class Listening(Enum):
    """A place: its listeners, the data that peers fetch or leave, and whether other nodes connect."""

    REQUESTS = ("the request channel",), "requests"
    PACE = ("the coordinator",), "the pace of rollouts and batches"
    ROLLOUTS = (LEARNER_RANKS,), "rollouts"
    # Only rank 0 sends; the other ranks take part in gathering shards.
    WEIGHTS = ("learner rank 0",), "new weights"
    MIRRORED_WEIGHTS = ("inference ranks",), "new weights", False
    ASKED_WITH = ("env workers", SCORED_FOR), "the data of requests"
    ANSWERS = ("env workers", SCORED_FOR), "answers"
    LARGE_ROLLOUTS = ("env workers",), "large rollouts"

    def __init__(self, listeners: tuple[str, ...], content: str, other_nodes: bool = True) -> None:
        self.listeners, self.content, self.other_nodes = listeners, content, other_nodes

    @property
    def words(self) -> str:
        """The place, as part of a sentence."""
        return f"{' or '.join(self.listeners)} for {self.content}"

    @property
    def socket_name(self) -> str:
        """The prefix of the names of this place's unix sockets, in Linux's abstract namespace."""
        return f"rlinf-async-{self.name.lower().replace('_', '-')}-"


def places(*, inference_scores: bool) -> list[dict[str, Any]]:
    """The places where processes of a run listen, as plain data.

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
