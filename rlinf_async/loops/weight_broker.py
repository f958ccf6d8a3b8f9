"""The broker of new weights, which keeps them until the inference ranks have taken them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from rlinf_async.core.publication import PublicationBoard
from rlinf_async.core.restarts import Generations
from rlinf_async.loops.waiting import Bell


class WeightBroker:
    """Hands the newest weights to every inference rank, and says when all of them act by a version.

    The learner `offer`s and goes on; each rank waits for its `next` and says when it has `applied` it.
    Whenever a version becomes published, `on_published` is called with it, before any waiter is woken. Of the
    payloads only the newest is kept, also for the successors of ranks that die. Every call of a rank bears
    its generation; calls of a lost generation are ignored.
    """

    def __init__(
        self,
        *,
        ranks: int,
        on_published: Callable[[int], None],
        deadline_s: float = math.inf,
    ) -> None:
        self._board = PublicationBoard(ranks=ranks)
        self._generations = Generations()
        self._on_published = on_published
        self._bell = Bell(deadline_s=deadline_s)
        self._payload: Any = None
        self._offered_at: dict[int, float] = {}
        self._lags: dict[int, float] = {}
        self._is_closed = False

    @property
    def version(self) -> int | None:
        """The newest published version, None before the first."""
        return self._board.published

    def offer(self, version: int, payload: Any) -> None:
        """The weights of `version` are there: `payload` is, or says where, in place of the one before."""
        self._board.offer(version)
        # Without an await since the board has the version: no rank may be given it with the payload before.
        self._payload = payload
        self._offered_at[version] = asyncio.get_running_loop().time()
        self._bell.ring()

    async def next(self, rank: int, generation: int = 0) -> tuple[int, Any] | None:
        """Wait for weights that are newer than those of `rank`; None when there will be no more."""

        def attempt() -> tuple[tuple[int, Any] | None] | None:
            # In a tuple, as a bare None has the bell wait on.
            if self._is_closed or not self._generations.lives(rank, generation):
                return (None,)
            version = self._board.wanted(rank)
            return None if version is None else ((version, self._payload),)

        (offer,) = await self._bell.first(
            attempt, waiting_for=lambda: f"new weights on inference rank {rank}: {self._board}"
        )
        if offer is not None:
            # From the hand-over on, publication waits for the successor: what it applies next must not be
            # older than a version that is published meanwhile.
            self._board.rank_back(rank)
        return offer

    def applied(self, rank: int, version: int, generation: int = 0) -> None:
        """`rank` acts by `version` from now on."""
        if self._generations.lives(rank, generation):
            before = self._board.published
            self._board.applied(rank, version)
            self._tell(before)

    def rank_lost(self, rank: int, generation: int) -> None:
        """Stop waiting for `rank`, which has died, until its successor, as `generation`, fetches weights."""
        # From here on an `applied` of the dead counts no more: its successor does not have that version.
        self._generations.begin([rank], generation)
        before = self._board.published
        self._board.rank_lost(rank)
        self._tell(before)
        self._bell.ring()

    def _tell(self, before: int | None) -> None:
        """Wake all waiters if there is a newer published version than `before`."""
        published = self._board.published
        if published is None or published == before:
            return
        now = asyncio.get_running_loop().time()
        # Those that were left out, too: who waits for one of them waits for it or a newer one.
        for reached_version in [offer for offer in self._offered_at if offer <= published]:
            self._lags[reached_version] = now - self._offered_at.pop(reached_version)
        # Before the ring: whoever wakes by it finds the gate open.
        self._on_published(published)
        self._bell.ring()

    async def published(self, version: int) -> float:
        """Wait until every rank acts by `version` or a newer one; the seconds that it took from its offer."""
        return await self._bell.first(
            lambda: self._lags.get(version),
            waiting_for=lambda: f"version {version} to reach the inference ranks: {self._board}",
        )

    def close(self) -> None:
        """No more weights will come: ranks that wait for some are told so."""
        self._is_closed = True
        self._bell.ring()
