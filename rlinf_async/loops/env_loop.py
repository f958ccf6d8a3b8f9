"""The env loop of a shard, with what the options of a run put around `run_shard`; no one else reads them.

`rollout.enabled`: a rollout begins while the one before is handed over. `advanced.balance=tasks`: the shard
is told before each rollout whose tasks to play. `deterministic`, with checkpoints: it is renewed at each of
them.

Theory of operation: tasks. A batch has a place for every rollout that the synchronous loop would train: a
shard and an epoch. The gate hands out the places of batch after batch to the shard that asks first; a ticket
says which. The shard plays the tasks of the place. They are known by the place and the number of the rollout
alone, so that a batch holds the tasks, and the groups, of the synchronous one, whichever shard collects them.
A place that is given back (a fault, a process that died, a refusal of the buffer) is handed out again before
any later one, with the same tasks.

Within a batch the places come first that took longest before. A slow task that begins last would keep the
batch waiting, and with it every shard at the gate; a shard that has played a fast task takes on a slow one of
the next batch, so that simulators stay busy within the same bound.

Theory of operation: renewal. Environments in the middle of their lives cannot be saved: no interface writes
down the state of a simulator and of the wrappers around it. So every deterministic run, interrupted or not,
has others built at its checkpoints, with a seed that follows from the step alone.

With a fixed lag a checkpoint needs no other barrier for that. Version `S` is published when every rollout
that an earlier one acts in has ended; so the first rollout of a shard that `S` acts in comes after all of
them, and is also the first one of a run that goes on from the checkpoint after step `S`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Ticket
from rlinf_async.loops.env import no_preparation, run_shard
from rlinf_async.loops.ports import TaskTaker
from rlinf_async.loops.run_settings import RunSettings


def env_loop(settings: RunSettings, shard: int, env: Any, **parts: Any) -> Coroutine[Any, Any, None]:
    """Return the env loop of `shard`, whose environments are `env`; `parts` are the host's own of
    `run_shard`.
    """
    overlaps = settings.asynchrony.rollout.enabled
    return run_shard(shard=shard, env=env, overlaps=overlaps, before=_preparation(settings, env), **parts)


def _preparation(settings: RunSettings, env: Any) -> Callable[[Ticket], Awaitable[None]]:
    """Return what is awaited before each rollout; runs that renew environments never take on tasks."""
    if settings.asynchrony.takes_tasks:
        return taking_on(env, settings.plan)
    return Renewal(settings, env.renew).before if settings.renews else no_preparation


def taking_on(env: TaskTaker, plan: ShardPlan) -> Callable[[Ticket], Awaitable[None]]:
    """The callback `before` of `run_shard`: tell `env` whose tasks the rollout that begins is to play."""

    async def before(ticket: Ticket) -> None:
        env.take_on(ticket.place, plan.rollout_number(ticket.batch, ticket.epoch))

    return before


class Renewal:
    """Renews the environments of one shard, once at each checkpoint that is due."""

    def __init__(self, settings: RunSettings, renew: Callable[[int], Awaitable[None]]) -> None:
        """`renew` builds others in their place; it is given the step of the checkpoint."""
        self._settings = settings
        self._renew = renew
        self._renewed_at = 0

    async def before(self, ticket: Ticket) -> None:
        """The rollout of `ticket` is about to start.

        Raises:
            ShardFailure: environments could not be built; the next attempt builds them again.
        """
        if ticket.version != self._renewed_at and self._settings.renews_at(ticket.version):
            await self._renew(ticket.version)
            # Not before it: what could not be built has to be built at the next attempt.
            self._renewed_at = ticket.version
