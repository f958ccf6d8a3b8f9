"""The env loop of a shard, with what the options of a run put around `run_shard`; no one else reads them.

`rollout.enabled`: a rollout begins while the one before is handed over. `advanced.reset_ahead`: two sets of
environments play by turns. `train.balance=tasks`: the shard is told before each rollout whose tasks to play.
`deterministic`, with checkpoints: it is renewed at each of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from rlinf_async.core.types import Ticket
from rlinf_async.loops.env import no_preparation, run_shard
from rlinf_async.loops.renewal import Renewal
from rlinf_async.loops.reset_ahead import ResetAhead
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.task_taking import taking_on
from rlinf_async.observe.spans import SpanLog


def env_loop(
    settings: RunSettings,
    shard: int,
    build: Callable[[], Any],
    *,
    waiting: Callable[[], AbstractContextManager[object]],
    spans: SpanLog,
    build_spares: Callable[[], Sequence[Any]] | None = None,
    **parts: Any,
) -> Coroutine[Any, Any, None]:
    """Return the env loop of `shard`; `parts` are the host's own of `run_shard`.

    Args:
        build: gives the environments; it is called twice where they are reset ahead.
        waiting: the block in which a start waits for its reset.
        build_spares: gives both sets of environments, where it takes more than two calls of `build`.
    """
    asynchrony = settings.asynchrony
    collect = partial(run_shard, shard=shard, overlaps=asynchrony.rollout.enabled, spans=spans, **parts)
    if asynchrony.advanced.reset_ahead:
        first, spare = (build(), build()) if build_spares is None else build_spares()
        ahead = ResetAhead(first, spare, shard=shard, waiting=waiting, spans=spans)
        return ahead.closed_after(collect(env=ahead))
    env = build()
    return collect(env=env, before=_preparation(settings, env))


def _preparation(settings: RunSettings, env: Any) -> Callable[[Ticket], Awaitable[None]]:
    """Return what is awaited before each rollout; runs that renew environments never take on tasks."""
    if settings.asynchrony.takes_tasks:
        return taking_on(env, settings.plan)
    return Renewal(settings, env.renew).before if settings.renews else no_preparation
