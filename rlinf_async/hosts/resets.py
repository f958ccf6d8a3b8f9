"""Tells which environments can be reset ahead of their rollout (`async.advanced.reset_ahead`), and how
exactly.

A spare set of environments plays every other rollout. It begins where the set that it takes turns with would
have begun if both are seeded alike and each can leave out the rollouts that the other plays. That can be done
where a class is told which rollout to begin (`take_on`), and where all chance of a reset has been drawn by
`update_reset_state_ids` before it. Elsewhere the spare has a seed of its own: its draws have the same law,
and are another stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.reasons import Reason
from rlinf_async.hosts.tasks import TAKE_ON_METHOD, can_take_on

AT_ONCE = "async.advanced.reset_ahead=false"
ONE_OF_ITS_KIND = {"realworld": "there is one robot, and no second set of it"}
"""Why some of RLinf's own environments have no spare."""


def cannot_reset_ahead(
    env: Mapping[str, Any], asynchrony: AsyncConfig, *, key: str = "env.train"
) -> Iterator[Reason]:
    """Why environments of the section `env`, which stands at `key`, cannot be reset ahead, if they are to."""
    if not asynchrony.advanced.reset_ahead:
        return
    if env.get("auto_reset"):
        yield Reason(
            f"async.advanced.reset_ahead does not support {key}.auto_reset=True: episodes begin within a "
            f"rollout, and the next rollout goes on with them; use {key}.auto_reset=false, or "
            "async.advanced.reset_ahead=false",
            AT_ONCE,
        )
    if why := ONE_OF_ITS_KIND.get(str(env.get("env_type"))):
        yield Reason(
            f"async.advanced.reset_ahead does not support {key}.env_type={env['env_type']}: {why}; use "
            "async.advanced.reset_ahead=false",
            AT_ONCE,
        )


def draws_beforehand(env: Mapping[str, Any]) -> bool:
    """Return True if RLinf's own environments of the section `env` reset to the draws of
    `update_reset_state_ids`.

    ManiSkill resets with one and the same seed, whatever else it resets to.
    """
    simulator = None if env.get("env_class") else env.get("env_type")
    return simulator == "maniskill" or bool(simulator == "libero" and env.get("use_fixed_reset_state_ids"))


def same_draws(env: Mapping[str, Any]) -> bool:
    """Return True if rollouts with a spare begin where they would without one."""
    return draws_beforehand(env) or can_take_on(env)


class Turns:
    """The rollouts of a shard that one of two sets of its environments plays."""

    def __init__(self, env: Mapping[str, Any], place: int) -> None:
        """`env` is the section that they were built from, `place` the number of the shard."""
        self._place = place
        self._told, self._draws = can_take_on(env), draws_beforehand(env)
        self._next, self._left_out = 0, 0

    def skip(self) -> None:
        """The next rollout is the other's."""
        self._left_out += 1

    def begin(self, method: Callable[[str], Any]) -> None:
        """Have the reset that comes next begin the right rollout; in the thread of the environments, whose
        methods `method` gives by their names."""
        if self._told:
            method(TAKE_ON_METHOD)(self._place, self._next + self._left_out)
        elif self._draws:
            for _ in range(self._left_out):
                method("update_reset_state_ids")()
        self._next, self._left_out = self._next + self._left_out + 1, 0
