"""Decides which environments may collect for any position in a batch (`async.advanced.balance=tasks`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from rlinf_async.config import AsyncConfig
from rlinf_async.entry_points import TAKE_ON_METHOD, names_of
from rlinf_async.hosts.judge.reasons import Reason

TAKE_ON_GROUP = "rlinf_async.take_on"
"""Entry points, by environment name, of classes with a method `take_on(seed_offset, rollout)`; see
docs/extending.md. Before Ray starts only the names are read, so that no simulator is imported."""
DRAWING_SIMULATORS = frozenset({"calvin", "libero", "metaworld"})
"""RLinf's environments that draw the tasks and initial states of every rollout at random from one common set:
a rollout of any environment fits any position in the batch, without `take_on`."""

EXACT_OVERRIDE = "async.advanced.balance=exact"


def settled(asynchrony: AsyncConfig, env: Mapping[str, Any]) -> AsyncConfig:
    """Return `asynchrony` with `balance: auto` resolved for the environments of the section `env`.

    It becomes `tasks` if level 2 is on and the environments can be told their tasks or draw them at
    random.
    """
    return resolved_balance(asynchrony, takes_tasks=not (env.get("auto_reset") or _why_not(env)))


def resolved_balance(asynchrony: AsyncConfig, *, takes_tasks: bool) -> AsyncConfig:
    """Return `asynchrony` with `balance: auto` resolved for environments that can take on tasks, or not."""
    if asynchrony.advanced.balance != "auto":
        return asynchrony
    balance: Literal["exact", "tasks"] = "tasks" if takes_tasks and asynchrony.rollout.enabled else "exact"
    return replace(asynchrony, advanced=replace(asynchrony.advanced, balance=balance))


def task_reasons(
    env: Mapping[str, Any], asynchrony: AsyncConfig, *, key: str = "env.train"
) -> Iterator[Reason]:
    """Yield the reasons why the environments of the section `env` at `key` cannot take on tasks, if
    `balance: tasks` asks for that.
    """
    if not asynchrony.takes_tasks:
        return
    if env.get("auto_reset"):
        yield Reason(
            f"async.advanced.balance=tasks does not support {key}.auto_reset=True: tasks are taken on at a "
            f"reset before every rollout, and auto_reset has none; use {key}.auto_reset=false, or "
            f"{EXACT_OVERRIDE}",
            EXACT_OVERRIDE,
        )
    if why := _why_not(env):
        yield Reason(f"async.advanced.balance=tasks: {why}; use {EXACT_OVERRIDE}", EXACT_OVERRIDE)


def _why_not(env: Mapping[str, Any]) -> str:
    # First: with an `env_class`, `env_type` only decides how RLinf prepares actions.
    if name := env.get("env_class"):
        is_told = name in names_of(TAKE_ON_GROUP)
        return "" if is_told else f"no package declares a {TAKE_ON_METHOD} for {name} ({TAKE_ON_GROUP})"
    simulator = str(env.get("env_type"))
    if simulator not in DRAWING_SIMULATORS:
        return f"RLinf's {simulator} environments cannot be told which tasks to start"
    if env.get("use_ordered_reset_state_ids"):
        return f"each of RLinf's {simulator} environments goes through its share of the tasks in order"
    return ""
