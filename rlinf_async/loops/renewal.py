"""Rebuilds the environments of a deterministic run at its checkpoints, so that it can be interrupted
there.

Environments in the middle of their lives cannot be saved: no interface writes down the state of a simulator
and of the wrappers around it. So every run, interrupted or not, has others built at its checkpoints, with a
seed that follows from the step alone.

With a fixed lag a checkpoint needs no other barrier for that. Version `S` is published when every rollout
that an earlier one acts in has ended; so the first rollout of a shard that `S` acts in comes after all of
them, and is also the first one of a run that goes on from the checkpoint after step `S`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rlinf_async.core.types import Ticket
from rlinf_async.loops.run_settings import RunSettings


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
            self._renewed_at = ticket.version
