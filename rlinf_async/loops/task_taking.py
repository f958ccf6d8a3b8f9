"""A free shard takes on the tasks of the next place of a batch: `async.train.balance=tasks`.

Theory of operation. A batch has a place for every rollout that the synchronous loop would train: a shard and
an epoch. The gate hands out the places of batch after batch to the shard that asks first; a ticket says
which. The shard plays the tasks of the place. They are known by the place and the number of the rollout
alone, so that a batch holds the tasks, and the groups, of the synchronous one, whichever shard collects them.
A place that is given back (a fault, a process that died, a refusal of the buffer) is handed out again before
any later one, with the same tasks.

Within a batch the places come first that took longest before. A slow task that begins last would keep the
batch waiting, and with it every shard at the gate; a shard that has played a fast task takes on a slow one of
the next batch, so that simulators stay busy within the same bound.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Ticket
from rlinf_async.loops.ports import TaskTaker


def taking_on(env: TaskTaker, plan: ShardPlan) -> Callable[[Ticket], Awaitable[None]]:
    """The callback `before` of `run_shard`: tell `env` whose tasks the rollout that begins is to play."""

    async def before(ticket: Ticket) -> None:
        env.take_on(ticket.place, plan.rollout_number(ticket.batch, ticket.epoch))

    return before
