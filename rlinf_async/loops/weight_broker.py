"""The broker of new weights, which keeps them until the inference ranks have taken them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from rlinf_async.core.publication import PublicationBoard
from rlinf_async.core.restarts import Generations
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.waiting import Bell


class WeightBroker:
    """Hands the newest weights to every inference rank, and tells when all ranks act with a version.

    The learner calls `offer` and continues. Each rank waits in `next`, and calls `applied` after loading.
    When a version becomes published, `on_published` is called with it, before any waiter is woken. Only the
    newest payload is kept; replacements of dead ranks get it too. Every call of a rank carries its
    generation; calls of a lost generation are ignored.
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
        """Offer the weights of `version`. `payload` holds or locates them, and replaces the last payload."""
        self._board.offer(version)
        # Without an await after the line before: otherwise a rank could get the new version with the old
        # payload.
        self._payload = payload
        self._offered_at[version] = asyncio.get_running_loop().time()
        self._bell.ring()

    async def next(self, rank: int, generation: int = 0) -> tuple[int, Any] | None:
        """Wait for weights that are newer than those of `rank`; None when there will be no more."""

        def attempt() -> tuple[tuple[int, Any] | None] | None:
            # In a tuple, as `Bell.first` waits on at a bare None.
            if self._is_closed or not self._generations.lives(rank, generation):
                return (None,)
            version = self._board.wanted(rank)
            return None if version is None else ((version, self._payload),)

        (offer,) = await self._bell.first(
            attempt, waiting_for=lambda: f"new weights on inference rank {rank}: {self._board}"
        )
        if offer is not None:
            # From here on publication waits for a replacement rank too: no version may be published meanwhile
            # that is newer than the one it is about to apply.
            self._board.rank_back(rank)
        return offer

    def applied(self, rank: int, version: int, generation: int = 0) -> None:
        """`rank` acts with `version` from now on."""
        if self._generations.lives(rank, generation):
            before = self._board.published
            self._board.applied(rank, version)
            self._tell(before)

    def rank_lost(self, rank: int, generation: int) -> None:
        """`rank` died: do not wait for it until its replacement, which has `generation`, fetches weights."""
        # From here on an `applied` of the dead rank is ignored: its replacement does not have that version.
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
        # Also the versions that no rank has applied: `published` waits for a version or a newer one.
        for reached_version in [offer for offer in self._offered_at if offer <= published]:
            self._lags[reached_version] = now - self._offered_at.pop(reached_version)
        # Before the ring, so that woken waiters find the gate open.
        self._on_published(published)
        self._bell.ring()

    async def published(self, version: int) -> float:
        """Wait until every rank acts with `version` or a newer one; return the seconds since its offer."""
        return await self._bell.first(
            lambda: self._lags.get(version),
            waiting_for=lambda: f"version {version} to reach the inference ranks: {self._board}",
        )

    def close(self) -> None:
        """No more weights will come: `next` returns None from now on."""
        self._is_closed = True
        self._bell.ring()


def weight_broker(settings: RunSettings, on_published: Callable[[int], None]) -> WeightBroker:
    """Return the broker of new weights of a run."""
    return WeightBroker(
        ranks=settings.plan.inference_ranks,
        on_published=on_published,
        deadline_s=settings.asynchrony.advanced.deadline_s,
    )
