"""Runs the env, inference and learner loops in one process, without Ray or RLinf."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import ShardFailure
from rlinf_async.core.frame_counts import FrameMeter
from rlinf_async.core.scores import ToScore
from rlinf_async.hosts.local.inference import InferenceRank, State
from rlinf_async.hosts.local.learner import local_learner
from rlinf_async.hosts.local.policy import ActorCritic, PolicyFactory
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.shard import EnvFactory, RolloutRecorder, Shard
from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.hosts.tasks import resolved_balance
from rlinf_async.loops.env import env_loop
from rlinf_async.loops.env_restarts import ShardRestarts, fault_of
from rlinf_async.loops.finite import check_weights
from rlinf_async.loops.foreign import DaemonThread, contained, harmless
from rlinf_async.loops.in_process import InProcessRun
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.learner import WAITING_METRIC, learn_batch
from rlinf_async.loops.request_broker import RankRequests
from rlinf_async.loops.scoring import ScoredPieces
from rlinf_async.loops.simulator_thread import CLOSE_TIMEOUT_S
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import RankPieces, may_offer
from rlinf_async.observe.events import LAG_METRIC, PUBLICATION_METRIC, FaultCounts, StepReport
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import UNRECORDED, Process, SpanLog

if TYPE_CHECKING:
    from rlinf_async.loops.ports import AnchoredLearner, PiecePort

Result = TypeVar("Result")
OnStep = Callable[[StepReport, Mapping[str, float]], None]
LOOK_INTERVAL_S = 1.0
LOOP_PROCESSES = (Process.ENV, Process.INFERENCE, Process.LEARNER)
"""The loops' process names in a trace; all three are in this process."""
PROCESS = Process.ENV.numbered(0)
"""The name of this process in its records of faults."""


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """The results of a run: its ledger, its weights and, with `keep_steps`, a report and metrics per
    batch.
    """

    reports: tuple[StepReport, ...]
    metrics: tuple[dict[str, float], ...]
    ledger: Ledger
    weights: State


class Faults:
    """Faults that a run survived: kept for its next report, and written to its directory, if there is one."""

    def __init__(self, run_dir: Path | None, on_fault: Callable[[Fault], None] = lambda fault: None) -> None:
        self._run_dir, self._on_fault = run_dir, on_fault
        self._new: list[Fault] = []

    def record(self, fault: Fault) -> None:
        """Take a fault."""
        if self._run_dir is not None:
            RunDir(self._run_dir).record(fault)
        self._new.append(fault)
        self._on_fault(fault)

    def pop(self) -> list[Fault]:
        """Return the faults since the last call."""
        new, self._new = self._new, []
        return new


class LocalTrainer:
    """Trains a policy in this process: env shards, inference ranks and a learner around two brokers.

    Every shard, every inference rank and the learner has a thread for its blocking work; one event loop does
    all waiting. The first failure ends the run and is raised. With all levels off, or with
    `async.deterministic`, results do not depend on timing: equal settings give equal weights, bit for bit.

    Environments and trajectories are in host memory; the policy computes on the device of its parameters.
    """

    def __init__(
        self,
        settings: LocalSettings,
        environments: EnvFactory,
        policy: PolicyFactory,
        *,
        weights: Mapping[str, torch.Tensor] | None = None,
        on_step: OnStep = lambda report, metrics: None,
        run_dir: Path | None = None,
        on_fault: Callable[[Fault], None] = lambda fault: None,
        look: Callable[[], object] = lambda: None,
        keep_steps: bool = True,
    ) -> None:
        """Set up a run.

        Args:
            weights: the initial state dict; by default the policy's own initialisation, with the run's seed.
            on_step: called with the report and all metrics of every batch, times included.
            run_dir: the directory for spans and for faults that the run survives.
            on_fault: called with every such fault.
            look: called every `LOOK_INTERVAL_S` seconds, also during a long batch.
            keep_steps: False to leave reports and metrics of batches out of the result, so that memory does
                not grow with their number.
        """
        self.settings = settings
        self._environments, self._policy = environments, policy
        self._weights, self._look = weights, look
        self._faults = Faults(run_dir, on_fault)
        self._reporting: Any = {"on_step": on_step, "keep_steps": keep_steps, "faults": self._faults}
        self._run: LocalRun | None = None
        self._trace = RunDir(run_dir).trace if run_dir is not None else None

    @property
    def ledger(self) -> Ledger:
        """Trajectories by outcome (trained, refused, in flight), of a run at any time, also after a
        failure.
        """
        return self._run.ledger if self._run is not None else Ledger()

    def run(self) -> LocalResult:
        """Train all batches; must not be called in a thread with a running event loop."""
        plan, process = self.settings.plan, WholeProcess()
        widths = {"env": plan.shards, "inference": plan.inference_ranks, "learner": 1}
        busy = {name: BusyMeter(width=width) for name, width in widths.items()}
        with ExitStack() as stack:
            shards = [
                stack.enter_context(self._shard(number, busy["env"], process))
                for number in range(plan.shards)
            ]
            self._settle(shards[0])
            model = self._model(shards[0].sizes)
            ranks = [
                stack.enter_context(closing(self._rank(rank, model, busy["inference"], process)))
                for rank in range(plan.inference_ranks)
            ]
            spans = {name: SpanLog(self._trace, process=name.numbered(0)) for name in LOOP_PROCESSES}
            own = spans[Process.LEARNER]
            learner = local_learner(self.settings, model, busy["learner"], spans=own)
            streaming = self.settings.run.streams
            thread = LearnerThread(learner, streaming=streaming, spans=own, process=process)
            self._run = LocalRun(
                self.settings,
                shards=shards,
                ranks=ranks,
                learner=stack.enter_context(closing(thread)),
                model=model,
                busy=busy,
                spans=spans,
                **self._reporting,
            )
            with asyncio.Runner(loop_factory=process.loop) as runner:
                return runner.run(interruptible(looked_at(self._run.train(), self._look)))

    def _rank(self, rank: int, model: ActorCritic, busy: BusyMeter, process: WholeProcess) -> InferenceRank:
        """Return an inference rank; the first one examines the policy."""

        def say(text: str) -> None:
            self._faults.record(Fault(process=PROCESS, what="odd policy", error=text))

        return InferenceRank(
            rank,
            model=model,
            busy=busy,
            deadline_s=self.settings.asynchrony.advanced.deadline_s,
            process=process,
            say=None if rank else say,
        )

    def _settle(self, shard: Shard) -> None:
        """Resolve `balance: auto` by the method that the environments have, and check that they have it for
        `tasks`.
        """
        asynchrony = resolved_balance(self.settings.asynchrony, takes_tasks=shard.takes_tasks)
        self.settings = replace(self.settings, asynchrony=asynchrony)
        if asynchrony.takes_tasks and not shard.takes_tasks:
            raise ValueError(
                "async.advanced.balance=tasks: these environments have no method take_on; use "
                "async.advanced.balance=exact"
            )

    @contextmanager
    def _shard(self, number: int, busy: BusyMeter, process: WholeProcess) -> Iterator[Shard]:
        """Yield a shard, and close it after the block; a failure to close is only recorded."""
        shard = Shard(number, settings=self.settings, build=self._environments, busy=busy, process=process)
        try:
            yield shard
        finally:
            try:
                shard.close()
            except ShardFailure as failure:
                self._faults.record(fault_of(failure, PROCESS, number, "they are left unclosed"))

    def _model(self, sizes: dict[str, int]) -> ActorCritic:
        # Environments in this process may draw from torch's generator, too, so its state is restored.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            model = self._policy(**sizes)
        if self._weights is not None:
            model.load_state_dict(self._weights)
        return model


class LearnerThread:
    """Trains batches in a thread, so that forward and backward passes do not block the event loop.

    A thread cannot be cancelled: a cancelled `train` waits, up to a deadline, for the present pass.
    """

    def __init__(
        self,
        learner: AnchoredLearner,
        *,
        streaming: bool,
        spans: SpanLog = UNRECORDED,
        process: WholeProcess | None = None,
    ) -> None:
        self._learner, self._streaming, self._spans = learner, streaming, spans
        self.to_score: Callable[[Any], ToScore] = learner.to_score
        self._thread = DaemonThread("learner")
        self._process = process or WholeProcess()
        self._thread.submit(self._process.pin_threads)

    async def train(self, batch: int, pieces: PiecePort) -> dict[str, float]:
        """Train global batch `batch` and return its metrics."""
        return await learn_batch(
            batch=batch,
            pieces=pieces,
            learner=self._learner,
            streaming=self._streaming,
            compute=self._compute,
            spans=self._spans,
        )

    async def _compute(self, work: Callable[..., Any], *arguments: object) -> Any:
        call = partial(contained, partial(self._process.train, partial(work, *arguments)), harmless)
        calling = asyncio.get_running_loop().run_in_executor(self._thread, call)
        # asyncio prints an error that no task waits for, as after a second cancellation. Such an error only
        # follows from the one that ended the run.
        calling.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait([calling])  # which leaves the future alone when it is cancelled
        except asyncio.CancelledError:
            await asyncio.wait([calling], timeout=CLOSE_TIMEOUT_S)
            raise
        return calling.result()

    def close(self) -> None:
        """Wait, up to a deadline, for a pass that is still running."""
        self._thread.leave(CLOSE_TIMEOUT_S)


class LocalRun(InProcessRun):
    """One run in this process; `loops.in_process` describes its course."""

    def __init__(
        self,
        settings: LocalSettings,
        *,
        shards: list[Shard],
        ranks: list[InferenceRank],
        learner: LearnerThread,
        model: ActorCritic,
        busy: dict[str, BusyMeter],
        on_step: OnStep,
        spans: Mapping[Process, SpanLog] | None = None,
        faults: Faults | None = None,
        keep_steps: bool = True,
    ) -> None:
        super().__init__(settings.run, busy=busy)
        self._settings, self._keep_steps, self._on_step = settings, keep_steps, on_step
        self._faults = faults or Faults(None)
        self._spans = spans or dict.fromkeys(LOOP_PROCESSES, UNRECORDED)
        self._shards, self._ranks, self._learner, self._model = shards, ranks, learner, model
        self._frames = FrameMeter()
        self._reports: list[StepReport] = []
        self._metrics: list[dict[str, float]] = []

    async def train(self) -> LocalResult:
        """Run the loops side by side until the last batch is trained."""
        await self._run()
        reports, metrics = tuple(self._reports), tuple(self._metrics)
        return LocalResult(reports=reports, metrics=metrics, ledger=self.ledger, weights=_copy(self._model))

    @cached_property
    def _pieces(self) -> PiecePort:
        """Return the pieces that the learner trains on."""
        run, pieces = self._settings.run, RankPieces(self._trajectories, 0)
        if not run.scored_by_inference:
            return pieces

        async def published(version: int) -> None:
            """Return at once: inference ranks have the weights before the batch begins."""

        inputs = self._learner.to_score
        return ScoredPieces(
            pieces, self._requests, run, rank=0, published=published, inputs=inputs, values=True
        )

    async def _collect(self) -> None:
        await together(self._env_loop(number) for number in range(len(self._shards)))

    def _env_loop(self, number: int) -> Coroutine[Any, Any, None]:
        asynchrony, spans = self._settings.asynchrony, self._spans[Process.ENV]
        restarts = ShardRestarts(
            number,
            asynchrony.survive,
            process=PROCESS,
            window_s=asynchrony.advanced.window_s,
            record=self._faults.record,
            spans=spans,
        )
        return env_loop(
            self._run_settings,
            number,
            self._shards[number],
            policy=self._requests,
            trajectories=self._trajectories,
            recorder=partial(RolloutRecorder, settings=self._run_settings),
            restarts=restarts,
            spans=spans,
        )

    def _serve(self) -> Iterator[Coroutine[Any, Any, None]]:
        for number, rank in enumerate(self._ranks):
            spans = self._spans[Process.INFERENCE]
            yield serve_policy(requests=RankRequests(self._requests, number), policy=rank, spans=spans)

    async def _learn(self) -> None:
        for batch in range(self._settings.batches):
            began = time.monotonic()
            metrics = await self._learner.train(batch, self._pieces)
            # Kept apart: the metrics of two equal runs are equal, their times are not.
            times = {WAITING_METRIC: metrics.pop(WAITING_METRIC), **await self._publish(batch + 1)}
            self._report(batch + 1, metrics, times, began)

    async def _publish(self, version: int) -> dict[str, float]:
        """Load the weights of `version` on every inference rank, then open the gate; return the times, in
        seconds.
        """
        began = time.monotonic()
        await may_offer(self._settings.run, version, self._trajectories)
        offered = time.monotonic()
        state = _copy(self._model)
        check_weights(version, state)
        for rank in self._ranks:
            await rank.load(version, state)
        # After every rank has loaded: any of them may answer a rollout that is admitted for this version.
        self._trajectories.publish(version)
        ended = time.monotonic()
        return {PUBLICATION_METRIC: ended - began, LAG_METRIC: ended - offered}

    def _report(self, step: int, metrics: dict[str, float], times: Mapping[str, float], began: float) -> None:
        report = self._reported(
            step,
            restarts={"env": FaultCounts.of(self._faults.pop()).restarts["env"]},
            seconds=time.monotonic() - began,
            metrics=metrics,
            publication_seconds=times[PUBLICATION_METRIC],
            frames=self._frames.pop([shard.env for shard in self._shards]),
        )
        if self._keep_steps:
            self._reports.append(report)
            self._metrics.append(metrics)
        self._on_step(report, {**metrics, **times})


async def looked_at(work: Coroutine[Any, Any, Result], look: Callable[[], object]) -> Result:
    """Run `work`, and call `look` every `LOOK_INTERVAL_S` seconds meanwhile."""

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    watching = asyncio.ensure_future(watch())
    try:
        return await work
    finally:
        watching.cancel()


async def interruptible(work: Coroutine[Any, Any, Result]) -> Result:
    """Run the main task of a run; once it is cancelled, as by an interrupt, raise CancelledError for any
    error.

    The work is done in a separate task, as a task with a TaskGroup may look cancelled by the group's failure.
    """
    try:
        return await asyncio.ensure_future(work)
    except Exception:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise


def _copy(model: ActorCritic) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
