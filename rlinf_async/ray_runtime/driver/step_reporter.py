"""The report of a step, collected from all workers while the next one is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlinf_async.core.frame_counts import FrameCount
from rlinf_async.observe.events import LAG_METRIC, PUBLICATION_METRIC, FaultCounts, StepReport
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.load import LoadMeter
from rlinf_async.observe.meters import Shares, merged, prefixed
from rlinf_async.observe.reading.faults import FaultReader
from rlinf_async.observe.rollout_measures import mean_of_episodes
from rlinf_async.ray_runtime.driver.fleet import Fleet
from rlinf_async.ray_runtime.processes.coordinator import Coordinator
from rlinf_async.ray_runtime.processes.inference_worker import InferenceWorker
from rlinf_async.ray_runtime.processes.request_channel import RequestChannel
from rlinf_async.ray_runtime.processes.shard_worker import ShardWorker

LEARN_KEYS = ("busy", "publication_seconds")
"""Keys in the result of `learn` that are not metrics of the framework."""


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """A trained step; it can be reported when its version is published."""

    step: int
    seconds: float
    """Seconds from the end of the step before until the learner could begin the next one."""
    publication_seconds: float
    """The part of `seconds` that the learner spent on publication instead of training."""
    learners: list[dict[str, float]]
    """The result of `learn` on every rank."""
    evaluation: dict[str, float]
    published: list[Any]
    """Calls that end when every inference rank acts by the version of this step."""

    @property
    def batch(self) -> int:
        """The global batch that was trained."""
        return self.step - 1

    def metrics(self, lag_seconds: float | None) -> dict[str, float]:
        """Return the metrics of the learner, of publication and of evaluation, by their logged names."""
        training = {name: value for name, value in self.learners[0].items() if name not in LEARN_KEYS}
        publication = {PUBLICATION_METRIC: self.publication_seconds}
        if lag_seconds is not None:
            publication[LAG_METRIC] = lag_seconds
        return {**training, **publication, **self.evaluation}


class StepReporter:
    """Collects the report of a step from every worker."""

    def __init__(
        self,
        fleet: Fleet,
        run_dir: Path,
        *,
        total: int,
        decisions: int,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`say` prints remarks. `decisions` is the number of decisions in a batch of the synchronous loop."""
        self._fleet = fleet
        self._load = LoadMeter()
        self._faults = FaultReader(run_dir)
        self._say = say
        self._total, self._decisions = total, decisions

    def collect(self, step: TrainedStep) -> tuple[StepReport, dict[str, float]]:
        """Return the report of a step, and further metrics; shares are of the time since the last report.

        The figures of a process that has died are missing.
        """
        env = _of_living(self._fleet.run_on_living("env", ShardWorker.pop_metrics, step.batch))
        inference = _of_living(self._fleet.run_on_living("inference", InferenceWorker.pop_busy))
        requests = _of_living(self._fleet.run_on_living("requests", RequestChannel.pop_batches))
        trajectories = self._fleet.run("coordinator", Coordinator.pop_trained, step.batch)[0]
        episodes = mean_of_episodes([result for result, _, _ in env])
        frames = sum((count for _, _, count in env), FrameCount())
        report = StepReport(
            step=step.step,
            total=self._total,
            seconds=step.seconds,
            env_steps=trajectories.env_steps,
            episode_return=_optional(episodes.get("return")),
            success=_optional(episodes.get("success_once")),
            busy={
                "env": Shares.of([share for _, shards, _ in env for share in shards]),
                "inference": Shares.of([share for rank in inference for share in rank]),
                "learner": Shares.of([rank["busy"] for rank in step.learners]),
            },
            publication=min(1.0, step.publication_seconds / step.seconds) if step.seconds else 0.0,
            staleness=trajectories.staleness,
            skipped={**trajectories.skipped_shares(decisions=self._decisions), **frames.shares},
            load=self._load.pop(),
            frames_drawn_s=frames.drawn_s,
            batch_size=merged(channel["size"] for channel in requests),
            batch_wait=merged(channel["wait"] for channel in requests),
            restarts={"env": FaultCounts.of(self._failed_envs()).restarts["env"]},
        )
        if skips := step.learners[0].get("async/steps_skipped"):
            self._say(f"step {step.step}: {skips:.0f} optimizer steps left out: gradients not finite")
        request_metrics = {"async/requests_again": float(sum(channel["again"] for channel in requests))}
        return report, {**prefixed("env", episodes), **request_metrics}

    def _failed_envs(self) -> list[Fault]:
        """Return faults of environments since the last step; print them, and oddities that were seen."""
        new = self._faults.new()
        faults = [fault for fault in new if fault.is_of_env]
        for fault in (*faults, *(each for each in new if each.is_odd)):
            self._say(str(fault))
        return faults


def _of_living(values: Sequence[Any]) -> list[Any]:
    return [one for one in values if one is not None]


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
