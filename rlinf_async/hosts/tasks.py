"""Tells which environments can take on the tasks of another shard, as `async.train.balance=tasks` asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.entry_points import load_class
from rlinf_async.hosts.reasons import Reason

ENVS_GROUP = "rlinf_async.envs"
TAKE_ON_METHOD = "take_on"
"""The method of an environment's class: `take_on(seed_offset, rollout)`; see docs/extending.md."""

EXACT_OVERRIDE = "async.train.balance=exact"
NO_TAKE_ON = "cannot be told which tasks to start"
NO_TAKE_ON_REASONS = {"libero": "draw the tasks of every rollout anew, and cannot be told which"}
"""The reason why RLinf's own environments cannot, where there is a special one."""


def cannot_take_on(
    env: Mapping[str, Any], asynchrony: AsyncConfig, *, key: str = "env.train"
) -> Iterator[Reason]:
    """Yield the reasons why the environments of the section `env`, at `key`, cannot take on tasks.

    Imports the class that the section names.

    Raises:
        ValueError: no package provides that class.
    """
    if not asynchrony.takes_tasks:
        return
    if env.get("auto_reset"):
        yield Reason(
            f"async.train.balance=tasks does not support {key}.auto_reset=True: tasks are taken on at a "
            f"reset before every rollout, and there episodes go on; use {key}.auto_reset=false, or "
            "async.train.balance=exact",
            EXACT_OVERRIDE,
        )
    why = _why_not(env)
    if why:
        yield Reason(
            f"async.train.balance=tasks: {why}; use async.train.balance=exact, or an {key}.env_class with "
            "the method take_on",
            EXACT_OVERRIDE,
        )


def _why_not(env: Mapping[str, Any]) -> str:
    name = env.get("env_class")
    if not name:
        simulator = str(env.get("env_type"))
        return f"RLinf's {simulator} environments {NO_TAKE_ON_REASONS.get(simulator, NO_TAKE_ON)}"
    try:
        declared = load_class(ENVS_GROUP, str(name))
    except ImportError as error:
        return f"whether {name} can take on tasks is not known here, as it cannot be imported ({error})"
    can = callable(getattr(declared, TAKE_ON_METHOD, None))
    return "" if can else f"{getattr(declared, '__name__', name)} has no method {TAKE_ON_METHOD}"
