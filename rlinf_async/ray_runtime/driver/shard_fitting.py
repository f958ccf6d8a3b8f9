"""Fits the number of shards to the time of a decision, after the first step, and once more if it has changed.

Env workers have measured their first rollouts (`core.shard_fit`). If fewer shards are clearly faster, or no
slower where the interpreter is crowded, the gate begins no further batch. When the batches that have begun
are collected, the env loops end by themselves, and begin again with the shards of the new plan; env workers
then build their environments anew (`ShardWorker.run_shards`). No rollout is under way at that moment, so that
ledger and bound on staleness hold as before; the learner goes on with pieces of the same size.

While shards crowd the interpreter, their steps wait for it too, and are measured as longer than they are. So
a fit after crowded rollouts may stop at too many shards, and the rollouts of fewer shards are measured again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rlinf_async.core.shard_fit import ShardFit, fit_shards
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.meters import Spread, merged
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker

MOST_CHANGES = 2
"""Simulators are built anew for each change."""
LEAST_STEPS_LEFT = 4
"""Near its end a run keeps its simulators: the batches of these steps have begun, or few come after them."""


class ShardFitting:
    """Decides after the first step of a run, and says when the env loops begin again."""

    def __init__(
        self, fleet: Fleet, settings: RunSettings, records: RunDir, *, total: int, say: Callable[[str], None]
    ) -> None:
        """`total` is the number of the run's last step."""
        self._total = total
        self._fleet, self._settings, self._records, self._say = fleet, settings, records, say
        self._open = bool(settings.shard_choices)
        """True while the number of shards may change."""
        self._next_fit = 0
        """The number of trained steps after which the shards have played a rollout."""
        self._fits: list[dict[str, Any]] = []
        self._answers_before: tuple[Spread, Spread] | None = (Spread(), Spread())
        """Waits and passes before the present shards; see `_answers`."""
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
            undisturbed: returns True if no process whose times are measured has been started again or given
                up.
        """
        if self._total - step < LEAST_STEPS_LEFT:
            self._open = False
        if self._open and self._chosen is None and step >= self._next_fit:
            self._decide(undisturbed)
        if self._chosen is None or step < self._begins_with - 1:
            return None
        chosen, self._chosen = self._chosen, None
        self._fleet.wait(env_loops, "the env shards to end before they are joined")
        if not undisturbed():
            chosen, self._open = self._settings, False
            self._records.change_facts(shard_fits=self._fits[:-1])
            self._say("the number of shards is kept, as a process of the run was started again meanwhile")
        self._fleet.run("coordinator", Coordinator.go_on, chosen.common())
        if chosen is not self._settings:
            self._records.change_facts(**chosen.facts(), shards_since=time.monotonic())
            self._settings, self._next_fit = chosen, self._begins_with + 1
            self._open = bool(chosen.shard_choices) and len(self._fits) < MOST_CHANGES
            self._answers_before = self._answers()
        return chosen

    def _decide(self, undisturbed: Callable[[], bool]) -> None:
        fit = self._fit() if undisturbed() else None
        self._open = fit is not None and fit.shards != fit.before
        if fit is None:
            return
        self._fits.append(fit.facts())
        self._records.change_facts(shard_fits=self._fits)
        self._say(str(fit))
        if self._open:
            (self._begins_with,) = self._fleet.run("coordinator", Coordinator.pause)
            self._chosen = self._settings.with_shards(fit.shards)

    def _fit(self) -> ShardFit | None:
        times = self._fleet.run_on_living("env", ShardWorker.shard_times)
        answers, earlier = self._answers(), self._answers_before
        if None in times or answers is None or earlier is None:
            return None
        spreads = zip(answers, earlier, strict=True)
        answer_s = sum(now.mean_since(before) for now, before in spreads)
        return fit_shards(times, answer_s=answer_s, choices=self._settings.shard_choices)

    def _answers(self) -> tuple[Spread, Spread] | None:
        """The seconds that requests have waited to be taken, and those of forward passes, up to now; None if
        a process is dead."""
        waits = self._fleet.run_on_living("requests", RequestChannel.waited)
        passes = self._fleet.run_on_living("inference", InferenceWorker.passes)
        return None if None in [*waits, *passes] else (merged(waits), merged(passes))
