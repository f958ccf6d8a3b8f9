"""A whole run on one page: the gate, the rollout, the optimizer steps, and the next version of the policy.

Theory of operation. For global batch `b`, in the order of time:

    gate      `run_shard` waits at the gate of the `TrajectoryBroker` for a ticket. A rollout for batch `b`
              may begin once version `b - max_staleness` is published (`core.admission`).
    act       For each decision `run_shard` sends an `ActionRequest` to the `RequestBroker`, which makes
    batches
              (`core.batching`). `serve_policy` takes a batch, makes one forward pass, and answers every
              request with the version that acted. A recorder cuts the rollout into pieces, which the buffer
              of the `TrajectoryBroker` keeps (`core.buffer`).
    train     `learn_batch` takes the pieces of batch `b`, all at once or as they arrive. `StreamingLearner`
              anchors each piece, estimates its advantages, cuts micro-batches, and says when the optimizer
              steps (`core.streaming`).
    publish   The weights are version `b + 1`. When every inference rank acts by them, the version is
              published, which opens the gate for batch `b + 1 + max_staleness` (`core.publication`).

The run ends in the order of its data: the gate closes behind the last batch, the env loops end, inference
answers the remaining requests and returns.

Here all loops are tasks of one event loop, and one class holds the common parts of such runs. On Ray each
line has processes of its own, which run the same functions:

    the order of steps   `ray_runtime.driver.run.AsyncRun.train`, in the driver
    gate, buffer         `ray_runtime.processes.coordinator.Coordinator`
    env loops            `ray_runtime.processes.shard_worker.ShardWorker`, in RLinf's env workers
    requests             `ray_runtime.processes.request_channel`
    inference            `ray_runtime.processes.inference_worker.InferenceWorker`, in RLinf's rollout workers
    learner              `ray_runtime.processes.learner_rank.LearnerRank`, in RLinf's actor
    publication          `ray_runtime.publication.weights.WeightSender`, the coordinator's `WeightBroker`, and
                         `ray_runtime.driver.run.Publication`, which waits for it
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.frame_counts import FrameCount
from rlinf_async.loops.request_broker import request_broker
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import trajectory_broker
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.meters import BusyMeter, Shares, Spread

NO_FRAMES = FrameCount()


class InProcessRun:
    """Runs the loops of a run side by side; a host provides the env, inference and learner loops."""

    def __init__(self, settings: RunSettings, *, busy: Mapping[str, BusyMeter]) -> None:
        """`busy` are the meters of "env", "inference" and "learner", for the reports."""
        self._run_settings, self._busy = settings, busy
        self._requests = request_broker(settings)
        self._trajectories = trajectory_broker(settings)

    @property
    def ledger(self) -> Ledger:
        """Counts of the trajectories so far, by their fate."""
        return self._trajectories.ledger

    def _collect(self) -> Coroutine[Any, Any, None]:
        """Gate and act: all env loops. A host implements it with `env_loop`."""
        raise NotImplementedError

    def _serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Act: the loops of the inference ranks. A host implements it."""
        raise NotImplementedError

    def _learn(self) -> Coroutine[Any, Any, None]:
        """Train and publish, batch after batch. A host implements it."""
        raise NotImplementedError

    async def _run(self) -> None:
        """Run all loops to their end; the first failure cancels the others, and is raised without a group."""
        await together([self._feed(), *self._serve()])

    async def _feed(self) -> None:
        """Run the loops that send requests (the learner asks for scores), then let inference return."""
        await together([self._collect(), self._learn()])
        # After both loops: the closed broker refuses later requests.
        self._requests.close()

    def _reported(
        self,
        step: int,
        *,
        seconds: float,
        metrics: Mapping[str, float],
        restarts: Mapping[str, int] | None = None,
        publication_seconds: float = 0.0,
        frames: FrameCount = NO_FRAMES,
    ) -> StepReport:
        """Return the report of `step` after its version is published; counts restart for the next report.

        `frames`: the frames that environments have counted since the last report.
        """
        # Batch `step - 1` has made version `step`.
        requests, trained_batch = self._requests, self._trajectories.pop_trained(step - 1)
        decisions = self._run_settings.samples_per_batch
        report = StepReport(
            step=step,
            total=self._run_settings.batches,
            seconds=seconds,
            env_steps=trained_batch.env_steps,
            episode_return=metrics.get("env/return"),
            success=metrics.get("env/success_once"),
            busy={name: Shares.of(meter.pop()) for name, meter in self._busy.items()},
            staleness=trained_batch.staleness,
            skipped={**trained_batch.skipped_shares(decisions=decisions), **frames.shares},
            frames_drawn_s=frames.drawn_s,
            batch_size=requests.batch_size,
            batch_wait=requests.batch_wait,
            restarts=restarts or {},
            publication=min(1.0, publication_seconds / seconds) if seconds else 0.0,
        )
        requests.batch_size, requests.batch_wait = Spread(), Spread()
        return report
