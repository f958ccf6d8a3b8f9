"""A planned run: the loops and brokers of every run, side by side on a clock that does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rlinf_async import __version__
from rlinf_async.config import words
from rlinf_async.core.buffer import Ledger
from rlinf_async.core.scores import ToScore
from rlinf_async.lab.virtual.clock import run
from rlinf_async.lab.virtual.ranks import (
    RankWeights,
    ScoreRequests,
    VirtualLearner,
    VirtualRank,
    live_samples,
)
from rlinf_async.lab.virtual.shard import Asking, HandOver, VirtualRecorder, VirtualShard, Worker
from rlinf_async.lab.virtual.times import SimulatorBatch, Times
from rlinf_async.loops.env import env_loop
from rlinf_async.loops.in_process import InProcessRun
from rlinf_async.loops.inference import refresh_weights, serve_policy
from rlinf_async.loops.learner import PrefetchedPieces
from rlinf_async.loops.ports import PiecePort
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.requests import Pending
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.scoring import ScoredPieces
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import RankPieces, may_offer
from rlinf_async.loops.weight_broker import weight_broker
from rlinf_async.observe.events import StepReport
from rlinf_async.observe.files import make_directory
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_log import RunLog
from rlinf_async.observe.spans import Process, SpanLog


class Records:
    """The run directory of a planned run; without one nothing is written. Times are virtual seconds."""

    def __init__(self, path: Path | None, settings: RunSettings, *, now: Callable[[], float]) -> None:
        self._now = now
        self._logs: dict[str, SpanLog] = {}
        self._silent_log = SpanLog(None, now=now)
        self._run_dir: RunDir | None = None
        self._log: RunLog | None = None
        if path is None:
            return
        make_directory(path)
        self._run_dir = RunDir(path)
        self._log = RunLog(self._run_dir)
        title = (
            f"rlinf-async {__version__}, planned: levels {words(settings.asynchrony.levels)}; "
            f"{settings.plan.shards} shards of {settings.plan.envs_per_shard} environments"
        )
        self._run_dir.begin(settings.facts(), title=title, versions={"rlinf-async": __version__})

    def log(self, process: Process, rank: int) -> SpanLog:
        """Return the log of the spans of a process."""
        if self._run_dir is None:
            return self._silent_log
        name = process.numbered(rank) if process != Process.DRIVER else str(process)
        if name not in self._logs:
            self._logs[name] = SpanLog(self._run_dir.trace, process=name, now=self._now)
        return self._logs[name]

    def step(self, report: StepReport) -> None:
        """A batch is trained, and its version acts."""
        if self._log is not None:
            self._log.step(report)

    def end(self, ledger: Ledger) -> None:
        """All batches are trained."""
        if self._log is not None:
            self._log.finish(ledger)


DEADLINE_S = 1e9
"""Deadline of every wait: virtual time costs nothing, and a wait for ever is found all the same."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The prediction of a run."""

    reports: tuple[StepReport, ...]
    """One for each batch, in order."""
    trained_at: tuple[float, ...]
    """Virtual seconds at which the last micro-batch of each batch ends."""
    ledger: Ledger


def predict(
    settings: RunSettings, times: Times, *, run_dir: Path | None = None, order: int | None = None
) -> PlannedRun:
    """Run `settings` on virtual time; where an event loop is running, from another thread.

    Args:
        run_dir: where to write spans, metrics and facts, as a run does.
        order: the seed by which tasks are drawn that are ready at the same time; None: in their order.

    Raises:
        RuntimeError: the ledger does not add up.
    """

    async def train() -> PlannedRun:
        return await VirtualRun(settings, times, run_dir=run_dir).train()

    return run(train(), order=order)


class VirtualRun(InProcessRun):
    """One planned run, to be made where an event loop is running."""

    def __init__(self, settings: RunSettings, times: Times, *, run_dir: Path | None = None) -> None:
        advanced = replace(settings.asynchrony.advanced, measure_ratios=False, deadline_s=DEADLINE_S)
        asynchrony = replace(settings.asynchrony, advanced=advanced)
        # It saves nothing, so that its environments are never renewed.
        self._settings = settings = replace(settings, asynchrony=asynchrony, save_every=0)
        self._times, self._plan = times, settings.plan
        self._now = asyncio.get_running_loop().time
        widths = {
            "env": self._plan.shards,
            "inference": self._plan.inference_ranks,
            "learner": self._plan.learner_ranks,
        }
        busy = {name: BusyMeter(width=width, now=self._now) for name, width in widths.items()}
        super().__init__(settings, busy=busy)
        self._records = Records(run_dir, settings, now=self._now)
        self._weights = weight_broker(settings, self._trajectories.publish)
        self._reports: list[StepReport] = []
        self._trained_at: list[float] = []

    async def train(self) -> PlannedRun:
        """Run until the last batch is trained."""
        await self._run()
        self._records.end(self.ledger)
        return PlannedRun(
            reports=tuple(self._reports), trained_at=tuple(self._trained_at), ledger=self.ledger
        )

    async def _collect(self) -> None:
        await self._weights.published(0)
        hand_over = HandOver(self._trajectories, self._times.way)
        shards = []
        for number in range(self._plan.env_workers):
            worker, spans = Worker(self._times), self._records.log(Process.ENV, number)
            asking = Asking(requests=self._requests, way=self._times.way, worker=worker)
            for shard in self._plan.shards_of_worker(number):
                env = self._shard(shard, worker)
                recorder = partial(VirtualRecorder, settings=self._settings)
                parts = {"policy": asking, "trajectories": hand_over, "recorder": recorder, "spans": spans}
                shards.append(env_loop(self._run_settings, shard, env, **parts))
        await together(shards)

    def _shard(self, number: int, worker: Worker) -> VirtualShard:
        size, horizon = self._plan.envs_per_shard, self._settings.horizon
        return VirtualShard(
            number,
            batch=SimulatorBatch(self._times.simulators, number * size, size, horizon=horizon),
            plan=self._plan,
            horizon=horizon,
            skips_ended=self._settings.skips_ended,
            worker=worker,
            busy=self._busy["env"],
        )

    def _serve(self) -> Iterator[Coroutine[Any, Any, None]]:
        queue_log = self._records.log(Process.REQUESTS, 0)
        for number in range(self._plan.inference_ranks):
            rank = VirtualRank(number, self._times, busy=self._busy["inference"])
            spans = self._records.log(Process.INFERENCE, number)
            requests = RankPort(self._requests, number, queue_log)
            yield serve_policy(requests=requests, policy=rank, spans=spans)
            yield refresh_weights(weights=RankWeights(self._weights, number), policy=rank, spans=spans)

    def _learners(self) -> list[VirtualLearner]:
        ranks, training = self._plan.learner_ranks, self._times.training
        barrier = asyncio.Barrier(ranks) if ranks > 1 else None
        return [
            VirtualLearner(
                rank,
                times=training,
                settings=self._settings,
                pieces=self._pieces(rank),
                together=barrier,
                busy=self._busy["learner"],
                spans=self._records.log(Process.LEARNER, rank),
            )
            for rank in range(ranks)
        ]

    def _pieces(self, rank: int) -> PiecePort:
        pieces = PrefetchedPieces(
            RankPieces(self._trajectories, rank),
            until=self._settings.batches,
            together=self._settings.pieces_taken_together,
        )
        if not self._settings.scored_by_inference:
            return pieces
        return ScoredPieces(
            pieces,
            ScoreRequests(self._requests, self._times.way),
            self._settings,
            rank=rank,
            published=self._weights.published,
            inputs=self._to_score,
            values=False,
        )

    def _to_score(self, lengths: Sequence[int]) -> ToScore:
        """Return what is scored of a piece whose episodes have these lengths: its rows, of which the last is
        that of its last decision where nothing is decided after the ends, or those of them that are trained.
        """
        settings, horizon = self._settings, self._settings.horizon
        played = min(horizon, max(lengths)) if settings.skips_ended else horizon
        size = len(lengths) * (played + 1)
        if not settings.left_out.masked:
            return ToScore(samples={"none": torch.zeros(size)}, rows=None, size=size)
        count = live_samples(lengths, settings)
        return ToScore(samples={"none": torch.zeros(count)}, rows=torch.arange(count), size=size)

    async def _learn(self) -> None:
        learners, spans = self._learners(), self._records.log(Process.DRIVER, 0)
        sender = self._records.log(Process.LEARNER, 0)
        self._weights.offer(0, ())
        await self._weights.published(0)
        sending: asyncio.Task[None] | None = None
        end = self._now()
        for batch in range(self._settings.batches):
            with spans.span("learn", step=batch + 1):
                await asyncio.gather(*(learner.learn(batch) for learner in learners))
            with sender.span("copy"):
                await asyncio.sleep(self._times.weights.copy_s)
            self._trained_at.append(max(learner.trained_at for learner in learners))
            if sending is not None:
                await sending  # a copy leaves before the next takes its place
            began, end = end, self._now()
            sending = asyncio.create_task(self._send(batch + 1, end - began, sender))
        if sending is not None:
            await sending
        self._weights.close()

    async def _send(self, version: int, seconds: float, spans: SpanLog) -> None:
        """The way of `version` to all inference ranks, then what there is to say of its step."""
        await may_offer(self._settings, version, self._trajectories)
        with spans.span("send", version=version):
            await asyncio.sleep(self._times.weights.send_s)
        self._weights.offer(version, ())
        await self._weights.published(version)
        self._report(version, seconds)

    def _report(self, step: int, seconds: float) -> None:
        report = self._reported(step, seconds=seconds, metrics={})
        self._reports.append(report)
        self._records.step(report)


class RankPort:
    """The request broker as one inference rank sees it; fills `loops.ports.RequestPort`."""

    def __init__(self, broker: RequestBroker, rank: int, spans: SpanLog) -> None:
        self._broker, self._rank, self._spans = broker, rank, spans

    async def take(self) -> list[Pending] | None:
        batch = await self._broker.take(self._rank)
        if batch is not None:
            oldest, size = min(one.arrived for one in batch), sum(one.size for one in batch)
            self._spans.add("queued", oldest, requests=len(batch), size=size)
        return batch

    def answering(self, batch: Sequence[Pending]) -> AbstractAsyncContextManager[list[Any]]:
        return self._broker.answering(batch)
