"""The env loop: one task per shard, and no shard waits for another.

`env_loop` puts the options of a run around `run_shard`; no one else reads them.

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

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import ShardFailure, first_cause
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import REQUEST_NUMBERS, ActionRequest, Mode, Piece, Ticket
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.ports import PolicyPort, Recorder, ShardEnv, TrajectoryPort
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.spans import UNRECORDED, SpanLog

FAIL_AT_ONCE = SurviveConfig(env_restarts=0)


async def no_preparation(_: Ticket) -> None:
    """Do nothing between two rollouts: they follow each other at once."""


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
    """Collect rollouts until the gate closes for good; `before` each rollout, it is awaited with the
    ticket.

    A rollout whose environments fail is given up and collected again, once `restarts` has had them rebuilt;
    without it, the first failure is raised. With `overlaps` a rollout may begin while the one before,
    which the environments have played, waits for its last value and is handed over.

    Leaves the spans `gate`, `reset`, `ask` (from a request of `size` environments to its answer), `step` and
    `put`, `restart` after a failure, and `rollout` from the gate to the hand-over. A request and the step
    that takes its answer have the same number.
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
    """The failure of the environments and what was lost by it, until they are rebuilt."""

    async def run(self, group: asyncio.TaskGroup, *, overlaps: bool) -> None:
        """Two rollouts are under way at most: one that plays, and the end of the one before."""
        last: asyncio.Task[None] | None = None
        while True:
            await self._mend()
            # Taken before the wait at the gate: a rollout that ends meanwhile may have been refunded, and the
            # gate is then asked again instead of the loop being left.
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
                await last  # it may have been refused, or given up, and is to be collected again then

    async def _mend(self) -> None:
        """Have the environments rebuilt if they have failed."""
        if self.failed is not None:
            # Cleared before the await: the end of another rollout may fail meanwhile, which must not be lost.
            (failure, loss), self.failed = self.failed, None
            await self.restarts.restart(self.env, failure, loss=loss)

    async def _rollout(self, ticket: Ticket, free: asyncio.Future[None] | None) -> None:
        """Collect a rollout and hand it over; sets `free` when the environments are."""
        admitted_at = self.spans.now()
        try:
            await self.before(ticket)
            record = self.recorder(ticket)
            async with self.policy.rollout(self.shard):
                output, last = await self._play(record, (ticket.batch, ticket.epoch))
                if free is not None:
                    # The last value is asked for after this, while the next rollout may already step the
                    # environments: `last` must not share memory that a step writes.
                    free.set_result(None)
                answer = None if last is None else await _ask(last, self.policy, self.spans)
            # Outside of `policy.rollout`: without level 2 a batch waits for every shard inside it.
            pieces = record.build(output, answer)
        except ShardFailure as failure:
            # The refund comes before the rebuild, so that another shard can take the place meanwhile
            # (`balance: tasks`).
            await self.trajectories.abandon(ticket, failure.reason)
            self.failed = failure, f"a rollout for batch {ticket.batch}"
        else:
            await _hand_over(ticket, pieces, self.trajectories, self.spans, admitted_at)
            self.restarts.worked()

    async def _play(self, record: Recorder, lap: tuple[int, int]) -> tuple[Any, ActionRequest | None]:
        """All decisions of a rollout: the last output, and the request for its value where it is cut there.

        There is none if all episodes have ended, perhaps before the horizon.
        """
        env = self.env
        with self.spans.span("reset", shard=self.shard):
            output = await env.start()
        request = _request(self.shard, env, output, lap=lap)
        for _ in range(env.horizon):
            if request is None:
                break
            answer = await _ask(request, self.policy, self.spans)
            record.append(output, answer)
            with self.spans.span("step", shard=self.shard, number=request.number):
                output = await env.step(answer)
            # After the last step: before `finish`, which makes ready for the next rollout, and may write over
            # `output`.
            request = _request(self.shard, env, output, lap=lap)
        await env.finish()
        return output, request


async def evaluate_shard(
    *,
    shard: int,
    env: ShardEnv,
    policy: PolicyPort,
    rollouts: int,
    restarts: ShardRestarts | None = None,
    spans: SpanLog = UNRECORDED,
) -> None:
    """Run `rollouts` rollouts with the policy's evaluation actions; `env` keeps what it sees.

    A rollout whose environments fail is run again, once `restarts` has had them rebuilt.
    """
    restarts, remaining = restarts or ShardRestarts(shard, FAIL_AT_ONCE), rollouts
    while remaining:
        try:
            async with policy.rollout(shard):
                output = await env.start()
                for _ in range(env.horizon):
                    request = _request(shard, env, output, mode="eval")
                    if request is None:
                        break
                    output = await env.step(await _ask(request, policy, spans))
            await env.finish()
        except ShardFailure as failure:
            await restarts.restart(env, failure, loss="a rollout of the evaluation")
            continue
        restarts.worked()
        remaining -= 1


def _request(
    shard: int, env: ShardEnv, output: Any, *, mode: Mode = "train", lap: tuple[int, int] | None = None
) -> ActionRequest | None:
    """The request of the environments that wait for actions after an output; None if there are none."""
    size = env.waiting(output)
    if not size:
        return None
    payload, number = env.observation(output), next(REQUEST_NUMBERS)
    return ActionRequest(shard=shard, number=number, size=size, payload=payload, mode=mode, lap=lap)


async def _ask(request: ActionRequest, policy: PolicyPort, spans: SpanLog) -> Any:
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


# -- loops side by side --


async def together(loops: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run loops side by side; the first failure ends them all and is raised by itself."""
    async with first_failure() as group:
        for loop in loops:
            group.create_task(_to_its_end(loop))


async def _to_its_end(loop: Coroutine[Any, Any, None]) -> None:
    """Await `loop`, and raise an error if it ends as cancelled although no one has cancelled it."""
    task = asyncio.current_task()
    try:
        await loop
    # Left as it is, a `CancelledError` would end this task in silence, and everyone who waits for the work of
    # `loop` would wait for ever.
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise RuntimeError(
            "a loop of the run has ended as if it were cancelled, and nobody has cancelled it"
        ) from error


@asynccontextmanager
async def first_failure() -> AsyncIterator[asyncio.TaskGroup]:
    """Tasks whose first failure, which is raised by itself, ends all of them and the block."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        cause = first_cause([errors])
        # The bare error, and not the group: callers judge a run's end by the type of one error.
        raise cause from cause.__cause__ or errors


# -- the env loop of a run, and what comes before a rollout --


def env_loop(settings: RunSettings, shard: int, env: Any, **parts: Any) -> Coroutine[Any, Any, None]:
    """Return the env loop of `shard`, whose environments are `env`; `parts` are the host's own of
    `run_shard`.
    """
    overlaps = settings.asynchrony.rollout.enabled
    return run_shard(shard=shard, env=env, overlaps=overlaps, before=_preparation(settings, env), **parts)


def _preparation(settings: RunSettings, env: Any) -> Callable[[Ticket], Awaitable[None]]:
    """Return what is awaited before each rollout; runs that renew environments never take on tasks."""
    if settings.asynchrony.takes_tasks:
        return placing(env.take_on, settings.plan)
    then = Renewal(settings, env.renew).before if settings.renews else no_preparation
    return placing(env.stand_at, settings.plan, then)


def placing(
    place: Callable[[int, int], None],
    plan: ShardPlan,
    then: Callable[[Ticket], Awaitable[None]] = no_preparation,
) -> Callable[[Ticket], Awaitable[None]]:
    """The callback `before` of `run_shard`: tell the environments which rollout of which shard begins.

    Args:
        place: A method of a `TaskTaker`.
    """

    async def before(ticket: Ticket) -> None:
        place(ticket.place, plan.rollout_number(ticket.batch, ticket.epoch))
        await then(ticket)

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
