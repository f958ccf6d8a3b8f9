"""A rollout that is complete, divided for the learner ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Piece, Ticket


def pieces(
    ticket: Ticket,
    payloads: Sequence[Any],
    *,
    plan: ShardPlan,
    versions: Sequence[int],
    steps_per_decision: int = 1,
) -> list[Piece]:
    """The pieces of the rollout that `ticket` has admitted, one for each of `payloads`, in their order.

    Args:
        versions: the policy version of each decision.
        steps_per_decision: environment steps of one environment.
    """
    size = plan.piece_size
    return [
        Piece(
            ticket=ticket,
            part=part,
            rank=plan.learner_rank(ticket.place, part),
            size=size,
            oldest=min(versions),
            newest=max(versions),
            env_steps=size * len(versions) * steps_per_decision,
            payload=payload,
        )
        for part, payload in enumerate(payloads)
    ]
