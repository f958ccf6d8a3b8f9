"""A spare set of simulators resets while the other plays: `async.advanced.reset_ahead`.

Theory of operation. A rollout begins with a reset, in which a shard asks for nothing and the policy waits.
The reset needs nothing of the rollout before it, only simulators that do not play. With two sets of them,
which play by turns, the next reset may last as long as a rollout; what is left of it then is waited for.

Each set would begin its own k-th rollout where the other began its k-th one, were they built alike and left
to themselves. So each leaves out the draws of the rollouts that the other plays: the one that plays first
every other one, and the spare the very first one, too. The k-th rollout of the shard then begins where its
k-th rollout without a spare would have begun.

The two change places when the next rollout starts, and not when one has ended: until then any failure is one
of the set that has just played, which is the one to be rebuilt. A failure of a reset ahead is kept for the
start that wants it, by which time that set is the one that plays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from rlinf_async.core.failures import ShardFailure
from rlinf_async.loops.ports import SpareEnv
from rlinf_async.observe.spans import UNRECORDED, SpanLog


class ResetAhead:
    """Fills `loops.ports.ShardEnv` with two sets of the same environments, which play by turns.

    Only this object resets them. A reset that has begun is waited for once, by the `start` of its rollout.
    """

    def __init__(
        self,
        first: SpareEnv,
        spare: SpareEnv,
        *,
        shard: int,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        spans: SpanLog = UNRECORDED,
    ) -> None:
        """`first` plays the first rollout. The block `waiting` is open while a start waits for its reset.

        Leaves a span `reset ahead` for every reset.
        """
        self._playing, self._spare = first, spare
        self._shard, self._waiting, self._spans = shard, waiting, spans
        self._resets: dict[SpareEnv, asyncio.Task[Any]] = {}
        self._played = False
        spare.skip()

    @property
    def size(self) -> int:
        return self._playing.size

    @property
    def horizon(self) -> int:
        return self._playing.horizon

    async def start(self) -> Any:
        """The output of the reset that was begun ahead; the first time, of one that begins now."""
        if self._played:
            self._playing, self._spare, self._played = self._spare, self._playing, False
        reset = self._begin(self._playing)
        self._begin(self._spare)
        try:
            with self._waiting():
                return await reset
        finally:
            del self._resets[self._playing]

    async def step(self, answer: Any) -> Any:
        return await self._playing.step(answer)

    def observation(self, output: Any) -> Any:
        return self._playing.observation(output)

    async def finish(self) -> None:
        """A rollout has ended: begin to reset the environments that played it, for the one after the next."""
        await self._playing.finish()
        self._playing.skip()
        self._played = True
        self._begin(self._playing)

    async def restart(self) -> None:
        """Rebuild the environments that have played last; the other set is left alone."""
        reset = self._resets.pop(self._playing, None)
        if reset is not None:
            with suppress(ShardFailure):
                await reset
        await self._playing.restart()

    async def closed_after(self, loop: Coroutine[Any, Any, None]) -> None:
        """Await `loop`, which drives these environments; resets that are under way are cancelled at its
        end.
        """
        try:
            await loop
        finally:
            resets = list(self._resets.values())
            for reset in resets:
                reset.cancel()
            await asyncio.gather(*resets, return_exceptions=True)

    def _begin(self, env: SpareEnv) -> asyncio.Task[Any]:
        if env not in self._resets:
            self._resets[env] = asyncio.create_task(self._reset(env))
        return self._resets[env]

    async def _reset(self, env: SpareEnv) -> Any:
        with self._spans.span("reset ahead", shard=self._shard):
            return await env.reset()
