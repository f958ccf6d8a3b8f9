"""The env loop: one task per shard, and no shard waits for another.

`env_loop` applies the options of a run to `run_shard`; no other code of the env loop reads them:

`rollout.enabled`: a rollout begins while the one before is handed over. `advanced.balance=tasks`: the shard
is told before each rollout which shard's tasks to play. `deterministic`, with checkpoints: the environments
are built anew at each checkpoint (`loops.renewal`).

Theory of operation: tasks. A batch has a place for every rollout that the synchronous loop would train: a
shard and an epoch. The gate hands out the places of batch after batch to the shard that asks first; the
ticket names the place. The shard plays the tasks of the place. They follow from the place and the number of
the rollout alone, so that a batch holds the tasks, and the groups, of the synchronous batch, whichever shards
collect it. A place that is given back (a fault, a process that died, a refusal of the buffer) is handed out
again before any later one, with the same tasks.

Within a batch the places with the longest rollouts before come first. A slow task that begins last would
delay the batch, and with it every shard at the gate. A shard that has played a fast task takes on a slow one
of the next batch, so that simulators stay busy within the same bound on staleness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import ShardFailure
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import REQUEST_NUMBERS, ActionRequest, Piece, RequestKind, Ticket
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.together import first_failure
from rlinf_async.observe.spans import UNRECORDED, SpanLog

if TYPE_CHECKING:
    from rlinf_async.loops.ports import PolicyPort, Recorder, ShardEnv, TrajectoryPort

FAIL_AT_ONCE = SurviveConfig(env_restarts=0)


async def no_preparation(_: Ticket) -> None:
    """The default of `before`: do nothing, so that a rollout begins at once."""


async def run_shard(
    *,
    shard: int,
    env: ShardEnv,
    policy: PolicyPort,
    trajectories: TrajectoryPort,
    recorder: Callable[[Ticket], Recorder],
    restarts: ShardRestarts | None = None,
    before: Callable[[Ticket], Awaitable[None]] = no_preparation,
    overlaps: bool = False,
    spans: SpanLog = UNRECORDED,
) -> None:
    """Collect rollouts until the gate closes for good. `before(ticket)` is awaited before each rollout.

    If the environments fail, their rollout is given up, `restarts` has them rebuilt, and the rollout is
    collected again; without `restarts` the first failure is raised. With `overlaps` the next rollout may
    begin while the last one, already played, waits for its bootstrap value and is handed over.

    Records the spans `gate`, `reset`, `ask` (from a request for `size` environments to its answer), `step`,
    `put`, `restart` after a failure, and `rollout` from the gate to the hand-over. A request, and the step
    that applies its answer, have the same number.
    """
    loop = _ShardLoop(
        shard=shard,
        env=env,
        policy=policy,
        trajectories=trajectories,
        recorder=recorder,
        restarts=restarts or ShardRestarts(shard, FAIL_AT_ONCE),
        before=before,
        spans=spans,
    )
    async with first_failure() as group:
        await loop.run(group, overlaps=overlaps)


@dataclass(kw_only=True)
class _ShardLoop:
    """Rollouts of one shard; see `run_shard`."""

    shard: int
    env: ShardEnv
    policy: PolicyPort
    trajectories: TrajectoryPort
    recorder: Callable[[Ticket], Recorder]
    restarts: ShardRestarts
    before: Callable[[Ticket], Awaitable[None]]
    spans: SpanLog
    failed: tuple[ShardFailure, str] | None = None
    """The failure and a name of the lost rollout, until the environments are rebuilt."""

    async def run(self, group: asyncio.TaskGroup, *, overlaps: bool) -> None:
        """At most two rollouts are under way: one is played, the one before is handed over."""
        last: asyncio.Task[None] | None = None
        while True:
            await self._mend()
            # Read before the wait at the gate: a rollout that ends meanwhile may have been refunded, so that
            # the loop must ask the gate again instead of ending.
            complete = last is None or last.done()
            with self.spans.span("gate", shard=self.shard):
                ticket = await self.trajectories.admit(self.shard)
            if ticket is None and complete:
                return
            if ticket is not None:
                await self._mend()  # the end of the rollout before may have failed meanwhile
                # Set by `_rollout` when the environments are free; without `overlaps` it stays unset, and
                # only the end of the rollout counts.
                free = asyncio.get_running_loop().create_future()
                ending, last = last, group.create_task(self._rollout(ticket, free if overlaps else None))
                await asyncio.wait({free, last}, return_when=asyncio.FIRST_COMPLETED)
                if ending is not None:
                    # At most one ending at a time: the rollout before must be handed over before a third one
                    # begins.
                    await ending
            if last is not None and (ticket is None or last.done()):
                await last  # if it was refused or given up, it must be collected again

    async def _mend(self) -> None:
        """Have the environments rebuilt if they have failed."""
        if self.failed is not None:
            # Cleared before the await, or a failure of the other rollout meanwhile would be overwritten.
            (failure, loss), self.failed = self.failed, None
            await self.restarts.restart(self.env, failure, loss=loss)

    async def _rollout(self, ticket: Ticket, free: asyncio.Future[None] | None) -> None:
        """Collect a rollout and hand it over; set `free` when the environments are free."""
        admitted_at = self.spans.now()
        try:
            await self.before(ticket)
            record = self.recorder(ticket)
            async with self.policy.rollout(self.shard):
                output, last = await self._play(record, (ticket.batch, ticket.epoch))
                if free is not None:
                    # From here on the next rollout may step the environments, while the last value is
                    # requested: `last` must not share memory that a step writes.
                    free.set_result(None)
                answer = None if last is None else await ask(last, self.policy, self.spans)
            # Both outside of `policy.rollout`: without level 2 a batch waits for every shard inside it.
            await record.complete(output)
            pieces = record.build(output, answer)
        except ShardFailure as failure:
            # Refunded before the rebuild, so that another shard can take the place meanwhile (`balance:
            # tasks`).
            await self.trajectories.abandon(ticket, failure.reason)
            self.failed = failure, f"a rollout for batch {ticket.batch}"
        else:
            await _hand_over(ticket, pieces, self.trajectories, self.spans, admitted_at)
            self.restarts.worked()

    async def _play(self, record: Recorder, lap: tuple[int, int]) -> tuple[Any, ActionRequest | None]:
        """Make all decisions of a rollout; return the last output, and the request for its bootstrap value.

        The request is None if all episodes have ended, perhaps before the horizon.
        """
        env = self.env
        with self.spans.span("reset", shard=self.shard):
            output = await env.start()
        request = request_of(self.shard, env, output, lap=lap)
        for _ in range(env.horizon):
            if request is None:
                break
            answer = await ask(request, self.policy, self.spans)
            record.append(output, answer)
            with self.spans.span("step", shard=self.shard, number=request.number):
                output = await env.step(answer)
            # Made before `finish`, which prepares the next rollout and may overwrite `output`.
            request = request_of(self.shard, env, output, lap=lap)
        await env.finish()
        return output, request


def request_of(
    shard: int, env: ShardEnv, output: Any, *, mode: RequestKind = "train", lap: tuple[int, int] | None = None
) -> ActionRequest | None:
    """The request for the environments that wait for actions after `output`; None if there are none."""
    size = env.waiting(output)
    if not size:
        return None
    payload, number = env.observation(output), next(REQUEST_NUMBERS)
    return ActionRequest(shard=shard, number=number, size=size, payload=payload, mode=mode, lap=lap)


async def ask(request: ActionRequest, policy: PolicyPort, spans: SpanLog) -> Any:
    """Return the policy's answer, and record the span `ask`."""
    facts = {"mode": request.mode} if request.mode != "train" else {}
    with spans.span("ask", shard=request.shard, number=request.number, size=request.size, **facts):
        return await policy.act(request)


async def _hand_over(
    ticket: Ticket, pieces: Sequence[Piece], trajectories: TrajectoryPort, spans: SpanLog, admitted_at: float
) -> None:
    names = {"shard": ticket.shard, "batch": ticket.batch, "epoch": ticket.epoch, "place": ticket.place}
    oldest, newest = min(piece.oldest for piece in pieces), max(piece.newest for piece in pieces)
    with spans.span("put", **names):
        await trajectories.put(ticket, pieces)
    spans.add("rollout", admitted_at, **names, version=ticket.version, oldest=oldest, newest=newest)


# -- the env loop of a run, and the preparation of a rollout --


def env_loop(settings: RunSettings, shard: int, env: Any, **parts: Any) -> Coroutine[Any, Any, None]:
    """Return the env loop of `shard` with the environments `env`; the host gives `parts`, the other arguments
    of `run_shard`.
    """
    overlaps = settings.asynchrony.rollout.enabled
    return run_shard(shard=shard, env=env, overlaps=overlaps, before=_preparation(settings, env), **parts)


def _preparation(settings: RunSettings, env: Any) -> Callable[[Ticket], Awaitable[None]]:
    """Return the argument `before` of `run_shard`; runs that renew environments never take on tasks."""
    if settings.asynchrony.takes_tasks:
        return placing(env.take_on, settings.plan)
    if not settings.renews:
        return placing(env.stand_at, settings.plan)
    from rlinf_async.loops.renewal import Renewal  # for deterministic runs with checkpoints

    return placing(env.stand_at, settings.plan, Renewal(settings, env.renew).before)


def placing(
    place: Callable[[int, int], None],
    plan: ShardPlan,
    then: Callable[[Ticket], Awaitable[None]] = no_preparation,
) -> Callable[[Ticket], Awaitable[None]]:
    """The callback `before` of `run_shard`: tell the environments the rollout and the shard that begins.

    Args:
        place: A method of a `TaskTaker`.
    """

    async def before(ticket: Ticket) -> None:
        place(ticket.place, plan.rollout_number(ticket.batch, ticket.epoch))
        await then(ticket)

    return before
