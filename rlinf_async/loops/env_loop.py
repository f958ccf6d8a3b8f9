"""The env loop of a shard, with what the options of a run put around `run_shard`; no one else reads them.

`rollout.enabled`: a rollout begins while the one before is handed over. `train.balance=tasks`: the shard is
told before each rollout whose tasks to play. `deterministic`, with checkpoints: it is renewed at each of
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rlinf_async.core.types import Ticket
from rlinf_async.loops.env import no_preparation, run_shard
from rlinf_async.loops.renewal import Renewal
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.task_taking import taking_on


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
