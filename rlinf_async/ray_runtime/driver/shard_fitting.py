"""Fits the number of shards to the time of a decision, once, after the first step.

Env workers have measured their first rollouts (`core.shard_fit`). If fewer shards are clearly faster, the
gate begins no further batch. When the batches that have begun are collected, the env loops end by themselves,
and begin again with the shards of the new plan; env workers then build their environments anew
(`ShardWorker.run_shards`). No rollout is under way at that moment, so that ledger and bound on staleness hold
as before; the learner goes on with pieces of the same size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async.core.shard_fit import ShardFit, fit_shards
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.meters import merged
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker


class ShardFitting:
    """Decides after the first step of a run, and says when the env loops begin again."""

    def __init__(
        self, fleet: Fleet, settings: RunSettings, records: RunDir, *, say: Callable[[str], None]
    ) -> None:
        self._fleet, self._settings, self._records, self._say = fleet, settings, records, say
        self._open = bool(settings.shard_choices)
        self._chosen: RunSettings | None = None
        self._begins_with = 0
        """The first batch of the chosen shards."""

    def after(
        self, step: int, *, env_loops: Sequence[Any], undisturbed: Callable[[], bool]
    ) -> RunSettings | None:
        """Return the settings with which the env loops, which have ended, begin again; None if they go on.

        Args:
            step: the number of trained steps; the next batch is being trained.
            env_loops: the calls of the present loops.
            undisturbed: returns True if no env worker has been started again.
        """
        if self._open:
            self._open = False
            self._decide(undisturbed)
        if self._chosen is None or step < self._begins_with - 1:
            return None
        chosen, self._chosen = self._chosen, None
        self._fleet.wait(env_loops, "the env shards to end before they are joined")
        if not undisturbed():
            chosen = self._settings
            self._records.change_facts(shard_fit=None)
            self._say("the number of shards is kept, as an env worker was started again meanwhile")
        self._fleet.run("coordinator", Coordinator.go_on, chosen.common())
        if chosen is not self._settings:
            self._records.change_facts(**chosen.facts(), shards_since=time.monotonic())
        return chosen

    def _decide(self, undisturbed: Callable[[], bool]) -> None:
        fit = self._fit() if undisturbed() else None
        if fit is None:
            return
        self._records.change_facts(shard_fit=fit.facts())
        self._say(str(fit))
        if fit.shards != fit.before:
            (self._begins_with,) = self._fleet.run("coordinator", Coordinator.pause)
            self._chosen = self._settings.with_shards(fit.shards)

    def _fit(self) -> ShardFit | None:
        times = self._fleet.run_on_living("env", ShardWorker.shard_times)
        passes = self._fleet.run_on_living("inference", InferenceWorker.pass_s)
        if None in times or None in passes:
            return None
        waited = merged(self._fleet.run_on_living("requests", RequestChannel.waited))
        answer_s = waited.mean + sum(passes) / len(passes)
        return fit_shards(times, answer_s=answer_s, choices=self._settings.shard_choices)
