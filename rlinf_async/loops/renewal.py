"""New environments at the checkpoints of a deterministic run.

Theory of operation. Environments cannot be saved in the middle of an episode: no interface writes down the
state of a simulator and of its wrappers. So every deterministic run, interrupted or not, builds new
environments at its checkpoints, with a seed that follows from the step alone.

With a fixed lag a checkpoint needs no further barrier. Version `S` is published when every rollout of earlier
versions has ended. So a shard's first rollout with actions of `S` comes after all of these, and is also the
first rollout of a run that resumes from the checkpoint after step `S`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rlinf_async.core.types import Ticket
from rlinf_async.loops.run_settings import RunSettings


class Renewal:
    """Renews the environments of one shard, once at each checkpoint that is due."""

    def __init__(self, settings: RunSettings, renew: Callable[[int], Awaitable[None]]) -> None:
        """`renew(step)` replaces the environments by new ones; `step` is the step of the checkpoint."""
        self._settings = settings
        self._renew = renew
        self._renewed_at = 0

    async def before(self, ticket: Ticket) -> None:
        """Renew the environments before the rollout of `ticket` if a checkpoint is due.

        Raises:
            ShardFailure: environments could not be built; the next attempt builds them again.
        """
        if ticket.version != self._renewed_at and self._settings.renews_at(ticket.version):
            await self._renew(ticket.version)
            # After `_renew`: if it fails, the next attempt must build again.
            self._renewed_at = ticket.version
