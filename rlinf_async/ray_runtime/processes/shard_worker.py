"""The process of one env worker: environment shards, each with a thread and a loop of its own."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import ShardFailure, StuckThread
from rlinf_async.core.frame_counts import FrameCount, FrameMeter
from rlinf_async.core.shard_times import FirstRollouts, ShardTimes
from rlinf_async.core.tensors import Episodes
from rlinf_async.core.types import Ticket, place_of
from rlinf_async.loops.env import env_loop
from rlinf_async.loops.env_restarts import ShardRestarts, fault_of
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.simulator_thread import Call, SimulatorThread
from rlinf_async.loops.together import together
from rlinf_async.observe.faults import Fault, FaultKind
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.handles import Handle, RequestChannels
from rlinf_async.ray_runtime.processes.forking import fork_apart
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.rollout_data import TrajectoryClient
from rlinf_async.ray_runtime.processes.run_process import RunProcess, hand_over_quickly
from rlinf_async.wire.memory import MemoryPool, Reuse
from rlinf_async.wire.shown_memory import RolloutMemory

if TYPE_CHECKING:
    from rlinf_async.loops.ports import EvalShardEnv, Recorder, TrainShardEnv

STUCK_EXIT_STATUS = 70
"""The exit status of an env worker that ends itself because a simulator hangs."""

T = TypeVar("T")

Rollouts = dict[str, Episodes]
"""Episode statistics of a shard's rollouts for one batch, by `place_of` their tickets."""


class ShardWorker(RunProcess):
    """The env shards of one worker; a host builds their environments and their recorders.

    Every simulator is built and used in the thread of its shard: simulators may block, and some are
    bound to the thread that made their rendering context. The shards of a worker are its stages 0, 1, …
    """

    eval_rollouts: int = 1
    """The number of rollouts of each shard in an evaluation."""
    skips_ended: bool = False
    """True if training rollouts neither step nor ask for actions in episodes that have ended."""

    def start_shards(self, asynchrony: AsyncConfig, *, rank: int, stages: int) -> None:
        """Begin as env worker `rank` with `stages` shards, which have no environments yet."""
        hand_over_quickly()
        self._shards_rank = rank
        self.asynchrony = asynchrony
        self._requests: RequestClient | None = None
        self._frames = FrameMeter()
        self._rollout_files = MemoryPool(Reuse.UNMAPPED)
        self._dividing = asyncio.Lock()
        """Held while environments of other shards are built: an evaluation waits for its own."""
        self._episodes: dict[int, list[Rollouts]] = defaultdict(lambda: [{} for _ in range(self._busy.width)])
        self._open_stages(stages)

    def _open_stages(self, stages: int) -> None:
        """Give each of `stages` stages its threads and its measures."""
        self._threads = {
            mode: [
                # `fork_apart` in each thread: else a simulator of another shard hides the death of this
                # one's.
                ThreadPoolExecutor(1, thread_name_prefix=f"{mode}-{number}", initializer=fork_apart)
                for number in range(stages)
            ]
            for mode in ("train", "eval")
        }
        self._busy = BusyMeter(width=stages)
        self._first_rollouts, self._cpu_began = FirstRollouts(stages), time.process_time()

    def simulators(self, mode: str, stage: int) -> SimulatorThread:
        """Return the thread of a stage's environments; it aborts environments that hang, if they allow it."""

        def abort(reason: str) -> bool:
            end = self.aborting(self.environments(mode)[stage])
            return end is not None and bool(end(reason))

        def measured(call: Call, seconds: float) -> None:
            if mode == "train":
                add = self._first_rollouts.reset if call == "reset" else self._first_rollouts.step
                add(stage, seconds, time.monotonic())

        return SimulatorThread(
            self._first_shard + stage,
            self._threads[mode][stage],
            self.asynchrony.advanced,
            abort=abort,
            measured=measured,
        )

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
        """Call `build` for every stage in the stage's thread, and return the results; see `each`.

        Raises:
            EnvironmentsFailed: `build` has raised an error for a shard.
            StuckThread: `build` hangs.
        """
        starts = [
            partial(self.simulators(mode, stage).begin, partial(build, stage), doing=doing)
            for stage in range(self._busy.width)
        ]
        return each(starts, in_processes=in_processes)

    def aborting(self, env: Any) -> Callable[[str], bool] | None:
        """Return the environments' function `abort(reason)`, which ends their processes; None without one."""
        return getattr(env, "abort", None)

    def train_shard(self, stage: int) -> TrainShardEnv:
        """Return the training environments of a stage. A host gives them."""
        raise NotImplementedError

    def eval_shard(self, stage: int) -> EvalShardEnv:
        """Return the evaluation environments of a stage, with no episodes yet. A host gives them."""
        raise NotImplementedError

    def recorder(self, settings: Any, stage: int, ticket: Ticket, episodes: Episodes) -> Recorder:
        """Return the recorder of the rollout of `ticket`, which adds its episodes to `episodes`. A host
        gives it.
        """
        raise NotImplementedError

    def environments(self, mode: str) -> Sequence[Any]:
        """Return the environments built for `mode` ("train" or "eval"), by stage. A host gives them."""
        raise NotImplementedError

    async def run_shards(self, settings: Any, requests: RequestChannels, coordinator: Handle) -> None:
        """Collect rollouts in all shards until the gate closes for good; `settings` is a `RunSettings`."""
        self.asynchrony, self.skips_ended = settings.asynchrony, settings.skips_ended
        async with self._dividing:
            if settings.plan.shards_per_worker != self._busy.width:
                await self._divide_anew(settings)
        self._cpu_began = time.process_time()
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
        """Return the env loop of a shard; `options` are the arguments of `env_loop` common to all shards."""
        env = self.train_shard(stage)
        env.keep_in(RolloutMemory(self._rollout_files, rows=env.horizon + 1))
        return env_loop(
            settings,
            shard,
            env,
            recorder=self._recorder(settings, stage),
            restarts=self._restarts(shard),
            spans=self.spans,
            **options,
        )

    async def shard_times(self) -> ShardTimes:
        """The times of the first rollouts of the shards."""
        return self._first_rollouts.times(time.process_time() - self._cpu_began)

    async def _divide_anew(self, settings: RunSettings) -> None:
        """Close all environments, and build those of the shards of `settings`; no rollout may be under way.

        Raises:
            EnvironmentsFailed: they cannot be built.
        """
        await self.close_envs()
        for threads in self._threads.values():
            for thread in threads:
                thread.shutdown(wait=False)
        self._open_stages(settings.plan.shards_per_worker)
        # In a thread: building may take minutes, and the event loop must answer meanwhile.
        await asyncio.to_thread(self.build_anew, settings)

    def build_anew(self, settings: Any) -> None:
        """Build the environments of other shards than before, those of `settings`. A host gives it."""
        raise NotImplementedError

    async def evaluate_shards(self, settings: Any, requests: RequestChannels) -> dict[str, torch.Tensor]:
        """Run the evaluation episodes on the same inference ranks as training, and return their
        statistics.
        """
        from rlinf_async.loops.evaluation import evaluate_shard  # few runs evaluate

        self.asynchrony = settings.asynchrony
        policy = self._policy(requests)
        async with self._dividing:
            envs = [self.eval_shard(stage) for stage in range(self._busy.width)]
        # Evaluation shards are numbered after all training shards, which may send requests at the same time.
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
        """Have the simulators for training leave their accelerator. A host with `takes_turns` gives
        it.
        """
        raise NotImplementedError

    async def pop_metrics(self, batch: int) -> tuple[dict[str, torch.Tensor], list[float], FrameCount]:
        """Return episode statistics of the rollouts for `batch`, and, since the last call, busy shares of the
        shards and counts of training frames drawn and left out.
        """
        shards = self._episodes.pop(batch, [])
        # In the order of the shards, so that the rounding of a mean does not depend on timing.
        rollouts = [episodes for shard in shards for episodes in shard.values()]
        metrics = concatenate_metrics([info for episodes in rollouts for info in episodes])
        return metrics, self._busy.pop(), self._frames.pop(self.environments("train"))

    async def read_episodes(self, batches: range) -> dict[str, list[Rollouts]]:
        """Return the statistics of ended rollouts for `batches`, by batch and stage."""
        # `in` first: indexing a missing batch of the defaultdict would add it.
        return {str(batch): list(self._episodes[batch]) for batch in batches if batch in self._episodes}

    async def resume_episodes(
        self, records: Sequence[dict[str, list[Rollouts]]], places: frozenset[tuple[int, str]]
    ) -> None:
        """Take the statistics that `read_episodes` of every env worker returned in the interrupted run.

        `places` are the rollouts that are in the buffer again, by batch and place; others are collected
        again.
        """
        own = records[self._shards_rank] if self._shards_rank < len(records) else {}
        for batch, stages in own.items():
            for stage, rollouts in enumerate(stages[: self._busy.width]):
                self._episodes[int(batch)][stage].update(
                    {place: episodes for place, episodes in rollouts.items() if (int(batch), place) in places}
                )

    def _restarts(self, shard: int) -> ShardRestarts:
        survive, window_s = self.asynchrony.survive, self.asynchrony.advanced.window_s
        return ShardRestarts(
            shard, survive, process=self.own_name, window_s=window_s, record=self.note_fault, spans=self.spans
        )

    @contextmanager
    def _ending_if_stuck(self, settings: RunSettings) -> Iterator[None]:
        """A block where a hung thread ends this process if the run restarts env workers, else the run."""
        try:
            yield
        except StuckThread as stuck:
            restartable = "env" in settings.restartable
            action = "the env worker ends itself" if restartable else "the run ends"
            error, _, stack = str(stuck).partition("\n")
            what: FaultKind = "simulator hangs"
            self.note_fault(Fault(process=self.own_name, what=what, error=error, trace=stack, action=action))
            if restartable:
                # A hung thread cannot be ended, and a normal exit would wait for it.
                os._exit(STUCK_EXIT_STATUS)
            raise

    async def close_envs(self) -> None:
        """Close the simulators that have a `close`, so that their processes end with the run.

        Everything is trained: a `close` that fails or hangs is recorded, and the run goes on.
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
            self.note_fault(fault_of(failure, self.own_name, simulators.shard, "they are left unclosed"))

    def _policy(self, requests: RequestChannels) -> RequestClient:
        """Return the client of the request channels, which training and evaluation share."""
        self._requests = self._requests or RequestClient(requests, generation=self.generation)
        return self._requests

    def _recorder(self, settings: RunSettings, stage: int) -> Callable[[Ticket], Recorder]:
        def build(ticket: Ticket) -> Recorder:
            # A rollout that is collected again replaces the statistics of the refused one.
            episodes = self._episodes[ticket.batch][stage][place_of(ticket)] = []
            return self.recorder(settings, stage, ticket, episodes)

        return build


def each(starts: Sequence[Callable[[], Callable[[], T]]], *, in_processes: bool) -> list[T]:
    """Call each start and wait for its result: side by side if `in_processes`, else one after the other.

    A start returns the function that waits for its result. Simulators in one process are not built side by
    side.
    """
    if not in_processes:
        return [start()() for start in starts]
    return [wait() for wait in [start() for start in starts]]


def concatenate_metrics(episodes: Episodes) -> dict[str, torch.Tensor]:
    """Join per-rollout episode statistics by name."""
    names = {name for info in episodes for name in info}
    return {name: torch.cat([info[name].reshape(-1) for info in episodes if name in info]) for name in names}
