"""Restarts of the failed environments of a shard, as often as the budget of the run allows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from rlinf_async.config import AdvancedConfig, SurviveConfig
from rlinf_async.core.failures import (
    EnvironmentsFailed,
    ShardFailure,
    StuckThread,
    frames_of,
    in_words,
    kind_of,
)
from rlinf_async.core.restarts import RestartBudget
from rlinf_async.observe.faults import Fault, RecordFault, record_nothing
from rlinf_async.observe.spans import UNRECORDED, Process, SpanLog

if TYPE_CHECKING:
    from rlinf_async.loops.ports import ShardEnv


class ShardRestarts:
    """The restarts of one shard's environments.

    Only one restart is allowed before the first rollout is handed over: environments that have never worked
    are a mistake of the set-up, not an accident.
    """

    def __init__(
        self,
        shard: int,
        survive: SurviveConfig,
        *,
        process: str = str(Process.ENV),
        window_s: float = AdvancedConfig.window_s,
        record: RecordFault = record_nothing,
        spans: SpanLog = UNRECORDED,
        worked: bool = False,
    ) -> None:
        """
        Args:
            process: The name of the process, for the record.
            window_s: Restarts of the last `window_s` seconds count.
            worked: True if such environments have completed a rollout before.
        """
        self._shard, self._process, self._record, self._spans = shard, process, record, spans
        self._survive, self._window_s = survive, window_s
        self._has_worked = worked
        self._budget = self._budget_of(survive.env_restarts if worked else min(1, survive.env_restarts))
        self._failures: list[tuple[float, ShardFailure]] = []

    def _budget_of(self, most: int) -> RestartBudget:
        return RestartBudget(most, self._window_s)

    def worked(self) -> None:
        """A rollout was completed."""
        if not self._has_worked:
            # The full budget: the restart before this first success no longer counts.
            self._has_worked, self._budget = True, self._budget_of(self._survive.env_restarts)

    async def restart(self, env: ShardEnv, failure: ShardFailure, *, loss: str) -> None:
        """Rebuild `env` after `failure`, and again if rebuilding fails; `loss` names the lost rollout.

        Raises:
            EnvironmentsFailed: the environments have failed too often; the message has the first error and
                the count.
        """
        loop = asyncio.get_running_loop()
        with self._spans.span("restart", shard=self._shard, error=failure.kind):
            while True:
                # Inside the loop: every attempt to build counts, or a build that always fails would be tried
                # for ever.
                wait = self._take(failure, loop.time())
                if wait is None:
                    self._note(failure, "the run ends", loss)
                    self._give_up()
                began = loop.time()
                await asyncio.sleep(wait)
                try:
                    await env.restart()
                except ShardFailure as again:
                    self._note(failure, "building the environments anew has failed", loss)
                    failure, loss = again, "nothing more"
                except StuckThread:
                    self._note(failure, "building the environments anew hangs", loss)
                    raise
                else:
                    break
        self._note(failure, "environments built anew", loss, seconds=loop.time() - began)

    def _take(self, failure: ShardFailure, now: float) -> float | None:
        self._failures = [
            (then, past_failure) for then, past_failure in self._failures if now - then < self._window_s
        ]
        # Before `take`: the error that ends the run counts this failure, too.
        self._failures.append((now, failure))
        return self._budget.take(now)

    def _give_up(self) -> NoReturn:
        first, times = self._failures[0][1].error, len(self._failures)
        if self._survive.env_restarts == 0:
            why = ", and async.survive.env_restarts=0 allows no rebuild"
        elif not self._has_worked:
            why = f" {times} times before they had completed one rollout; the first time"
        else:
            why = (
                f" {times} times within {self._window_s:g} s, more than async.survive.env_restarts="
                f"{self._survive.env_restarts} allows; the first time"
            )
        raise EnvironmentsFailed(
            f"the environments of shard {self._shard} have failed{why}: {in_words(first)}",
            kind=kind_of(first),
        ) from first

    def _note(self, failure: ShardFailure, action: str, loss: str, seconds: float | None = None) -> None:
        fault = fault_of(failure, self._process, self._shard, action)
        self._record(replace(fault, lost=loss, seconds=seconds))


def fault_of(failure: ShardFailure, process: str, shard: int, action: str) -> Fault:
    """Return the fault to record for a failure of the environments of `shard` in `process`."""
    return Fault(
        process=process,
        what=failure.what,
        shard=shard,
        error=in_words(failure.error),
        action=action,
        trace=frames_of(failure.error),
    )
