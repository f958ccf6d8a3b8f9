"""The env side of a run in one process: environment shards with a thread and a loop of their own."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import ShardFailure, StuckThread
from rlinf_async.core.frames import FrameCount, FrameMeter
from rlinf_async.core.tensors import Episodes
from rlinf_async.core.types import Ticket
from rlinf_async.loops.env import env_loop, evaluate_shard, together
from rlinf_async.loops.env_restarts import Record, ShardRestarts, record_nothing
from rlinf_async.loops.ports import Recorder, ShardEnv, TaskTaker
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.observe.failures import in_words, record_failure, trace_of
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.checkpoints.saved_buffer import place_of
from rlinf_async.ray_runtime.handles import Handle
from rlinf_async.ray_runtime.processes.coordinator import TrajectoryClient
from rlinf_async.ray_runtime.processes.forking import fork_apart
from rlinf_async.ray_runtime.processes.request_channel import RequestClient
from rlinf_async.ray_runtime.processes.run_process import RunProcess, hand_over_quickly

STUCK_EXIT_STATUS = 70
"""The exit status of an env worker that ends itself, as its environments hang."""

T = TypeVar("T")

Rollouts = dict[str, Episodes]
"""Episode statistics of each rollout of a shard for a batch, by the name of its place."""


class TrainShardEnv(ShardEnv, TaskTaker, Protocol):
    """Training environments that step together."""

    async def renew(self, step: int) -> None:
        """Close them, and build others, whose seed follows from `step` and from nothing that has happened."""


class EvalShardEnv(ShardEnv, Protocol):
    """Evaluation environments that step together, and what their episodes came to."""

    episodes: Episodes


class ShardWorker(RunProcess):
    """The env shards of one worker; a host builds their environments and records what they do.

    Every simulator is built and used in the thread of its shard: simulators may block, and some are
    bound to the thread that made their rendering context. Shards of a worker are counted from 0 as stages.
    """

    eval_rollouts: int = 1
    """Rollouts of each shard in an evaluation."""
    skips_ended: bool = False
    """True if nothing is stepped or decided for training in episodes that have ended."""

    def start_shards(self, asynchrony: AsyncConfig, *, rank: int, stages: int) -> None:
        """Begin with `stages` shards and no environments, as the env worker of this rank."""
        hand_over_quickly()
        self._shards_rank = rank
        self._threads = {
            mode: [
                # `fork_apart` in each: a simulator of another shard would hide the death of one of this.
                ThreadPoolExecutor(1, thread_name_prefix=f"{mode}-{number}", initializer=fork_apart)
                for number in range(stages)
            ]
            for mode in ("train", "eval")
        }
        self.asynchrony = asynchrony
        self._record: Record = record_nothing
        self._requests: RequestClient | None = None
        self._busy = BusyMeter(width=stages)
        self._frames = FrameMeter()
        self._episodes: dict[int, list[Rollouts]] = defaultdict(lambda: [{} for _ in range(stages)])

    async def join_run(self, process: str, run_dir: str, **options: Any) -> None:
        """Join the run as every process does; from now on faults of environments are recorded, too."""
        await super().join_run(process, run_dir, **options)
        self._record = partial(record_failure, Path(run_dir), process=process)

    def simulators(self, mode: str, stage: int) -> SimulatorThread:
        """The thread in which the environments of a stage live; it ends those that hang if it can."""

        def abort(reason: str) -> bool:
            end = self.aborting(self.environments(mode)[stage])
            return end is not None and bool(end(reason))

        shard = self._first_shard + stage
        return SimulatorThread(shard, self._threads[mode][stage], self.asynchrony.advanced, abort=abort)

    @property
    def _first_shard(self) -> int:
        return self._shards_rank * self._busy.width

    def in_threads(
        self,
        mode: str,
        build: Callable[[int], T],
        *,
        in_processes: bool,
        doing: str = "be built",
    ) -> list[T]:
        """Return the results of `build` for all stages, each made in its thread; see `each`.

        Raises:
            EnvironmentsFailed: `build` has failed for a shard, with any error.
            StuckThread: `build` hangs.
        """
        starts = [
            partial(self.simulators(mode, stage).begin, partial(build, stage), doing=doing)
            for stage in range(self._busy.width)
        ]
        return each(starts, in_processes=in_processes)

    def aborting(self, env: Any) -> Callable[[str], bool] | None:
        """Return the function that ends the processes of environments that hang, `abort(reason)`, if they
        have one.
        """
        return getattr(env, "abort", None)

    def train_shard(self, stage: int) -> TrainShardEnv:
        """The training environments of a stage. A host gives them."""
        raise NotImplementedError

    def eval_shard(self, stage: int) -> EvalShardEnv:
        """The evaluation environments of a stage, with no episodes yet. A host gives them."""
        raise NotImplementedError

    def recorder(self, settings: Any, stage: int, ticket: Ticket, episodes: Episodes) -> Recorder:
        """Return the recorder of the rollout of `ticket`, which adds its episodes to `episodes`. A host
        gives it.
        """
        raise NotImplementedError

    def environments(self, mode: str) -> Sequence[Any]:
        """The environments that have been built for "train" or "eval", by stage. A host gives them."""
        raise NotImplementedError

    async def run_shards(self, settings: Any, requests: Handle, coordinator: Handle) -> None:
        """Collect rollouts in all shards until the gate closes for good; `settings` are a `RunSettings`."""
        self.asynchrony, self.skips_ended = settings.asynchrony, settings.skips_ended
        policy = self._policy(requests)
        hand_over = TrajectoryClient(coordinator, generation=self.generation)
        shards = settings.plan.shards_of_worker(self._shards_rank)
        options = {"policy": policy, "trajectories": hand_over}
        loops = (
            self._collecting(settings, stage, shard=shard, **options) for stage, shard in enumerate(shards)
        )
        with self._ending_if_stuck(settings):
            await together(loops)

    def _collecting(
        self, settings: RunSettings, stage: int, *, shard: int, **options: Any
    ) -> Coroutine[Any, Any, None]:
        """The env loop of a shard; `options` are those of `run_shard` that all shards have in common."""
        return env_loop(
            settings,
            shard,
            self.train_shard(stage),
            recorder=self._recorder(settings, stage),
            restarts=self._restarts(shard),
            spans=self.spans,
            **options,
        )

    async def evaluate_shards(self, settings: Any, requests: Handle) -> dict[str, torch.Tensor]:
        """Run the evaluation episodes during training, through the same inference ranks, and return their
        statistics.
        """
        self.asynchrony = settings.asynchrony
        policy = self._policy(requests)
        envs = [self.eval_shard(stage) for stage in range(self._busy.width)]
        # Numbered on from the training shards, which may be asking at the same time.
        first = settings.plan.shards + settings.plan.shards_of_worker(self._shards_rank).start
        loops = (
            evaluate_shard(
                shard=first + stage,
                env=env,
                policy=policy,
                rollouts=self.eval_rollouts,
                restarts=self._restarts(first + stage),
                spans=self.spans,
            )
            for stage, env in enumerate(envs)
        )
        with self._ending_if_stuck(settings):
            await together(loops)
        return concatenate_metrics([info for env in envs for info in env.episodes])

    async def leave(self) -> None:
        """Have the simulators for training leave their accelerator. A host whose processes take turns gives
        it.
        """
        raise NotImplementedError

    async def pop_metrics(self, batch: int) -> tuple[dict[str, torch.Tensor], list[float], FrameCount]:
        """Episode statistics of the rollouts for `batch`; busy shares of the shards, and the frames that they
        have drawn and left out for training, since the last call.
        """
        shards = self._episodes.pop(batch, [])
        # In the order of the shards: the rounding of a mean does not depend on who was first.
        rollouts = [episodes for shard in shards for episodes in shard.values()]
        metrics = concatenate_metrics([info for episodes in rollouts for info in episodes])
        return metrics, self._busy.pop(), self._frames.pop(self.environments("train"))

    async def read_episodes(self, batches: range) -> dict[str, list[Rollouts]]:
        """Statistics of the rollouts for `batches` that have ended, by batch and stage."""
        # `in` first: a look at a batch that is missing would add it.
        return {str(batch): list(self._episodes[batch]) for batch in batches if batch in self._episodes}

    async def resume_episodes(
        self, records: Sequence[dict[str, list[Rollouts]]], places: frozenset[tuple[int, str]]
    ) -> None:
        """Go on with what `read_episodes` has given, of every env worker.

        `places` are the rollouts whose data is there again, by batch and place: others are collected again.
        """
        own = records[self._shards_rank] if self._shards_rank < len(records) else {}
        for batch, stages in own.items():
            for stage, rollouts in enumerate(stages[: self._busy.width]):
                self._episodes[int(batch)][stage].update(
                    {place: episodes for place, episodes in rollouts.items() if (int(batch), place) in places}
                )

    def _restarts(self, shard: int) -> ShardRestarts:
        survive, window_s = self.asynchrony.survive, self.asynchrony.advanced.window_s
        return ShardRestarts(shard, survive, window_s=window_s, record=self._record, spans=self.spans)

    @contextmanager
    def _ending_if_stuck(self, settings: RunSettings) -> Iterator[None]:
        """A thread that hangs ends this process, if another is started in its place; else it ends the run."""
        try:
            yield
        except StuckThread as stuck:
            restartable = "env" in settings.restartable
            action = "the env worker ends itself" if restartable else "the run ends"
            error, _, stack = str(stuck).partition("\n")
            self._record(what="simulator hangs", error=error, trace=stack, action=action)
            if restartable:
                # A thread that hangs in a simulator cannot be ended, and a normal exit would wait for it.
                os._exit(STUCK_EXIT_STATUS)
            raise

    async def close_envs(self) -> None:
        """Close the simulators that can be closed, so that their processes end with the run.

        Everything is trained: closing that fails, or does not come to an end, is put down and costs nothing.
        """
        for mode in self._threads:
            for stage, env in enumerate(self.environments(mode)):
                close = getattr(env, "close", None)
                if callable(close):
                    await self._close_or_record(self.simulators(mode, stage), close)

    async def _close_or_record(self, simulators: SimulatorThread, close: Callable[[], object]) -> None:
        try:
            # In a thread: `close` waits, and the process has to answer meanwhile.
            await asyncio.to_thread(simulators.close, close)
        except ShardFailure as failure:
            self._record(
                what=failure.what,
                shard=simulators.shard,
                error=in_words(failure.error),
                action="they are left unclosed",
                trace=trace_of(failure.error),
            )

    def _policy(self, requests: Handle) -> RequestClient:
        """The one way to inference, for training and for evaluation."""
        self._requests = self._requests or RequestClient(requests, generation=self.generation)
        return self._requests

    def _recorder(self, settings: RunSettings, stage: int) -> Callable[[Ticket], Recorder]:
        def build(ticket: Ticket) -> Recorder:
            # One that is collected again takes the place of what was refused.
            episodes = self._episodes[ticket.batch][stage][place_of(ticket)] = []
            return self.recorder(settings, stage, ticket, episodes)

        return build


def each(starts: Sequence[Callable[[], Callable[[], T]]], *, in_processes: bool) -> list[T]:
    """The results of what is started: all at once, or in turn where simulators share a process.

    A start gives what waits for its result.
    """
    if not in_processes:
        return [start()() for start in starts]
    return [wait() for wait in [start() for start in starts]]


def concatenate_metrics(episodes: Episodes) -> dict[str, torch.Tensor]:
    """Join per-rollout episode statistics by name."""
    names = {name for info in episodes for name in info}
    return {name: torch.cat([info[name].reshape(-1) for info in episodes if name in info]) for name in names}
