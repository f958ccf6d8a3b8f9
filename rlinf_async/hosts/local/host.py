"""All three loops in one process: no Ray, no RLinf, the same loops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlinf_async.core.buffer import Ledger
from rlinf_async.core.tracing import BusyMeter, Shares, Spread, StepReport
from rlinf_async.hosts.local.device import Watch, unwatched
from rlinf_async.hosts.local.envs import EnvFactory
from rlinf_async.hosts.local.inference import InferenceRank, RankRequests, State
from rlinf_async.hosts.local.learner import LocalLearner
from rlinf_async.hosts.local.learner_thread import LearnerThread
from rlinf_async.hosts.local.policy import ActorCritic, GaussianPolicy, PolicyFactory
from rlinf_async.hosts.local.recorder import RolloutRecorder
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.shard import Shard
from rlinf_async.loops.env import run_shard, together
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.trajectory_broker import TrajectoryBroker


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """What a run left behind: a report and metrics per batch, the books, and the weights."""

    reports: tuple[StepReport, ...]
    metrics: tuple[dict[str, float], ...]
    ledger: Ledger
    weights: State


class LocalHost:
    """Trains a policy in this process: env shards, inference ranks and a learner around two brokers.

    Every shard, every rank and the learner has a thread for its blocking work; all waiting is done by
    one event loop. The first failure ends the run and is raised by itself. With all levels off, or with
    `async.deterministic`, nothing depends on timing: equal settings give equal weights, bit for bit.

    Environments and trajectories are in the CPU's memory, the policy where its parameters are.
    """

    def __init__(
        self,
        settings: LocalSettings,
        environments: EnvFactory,
        *,
        policy: PolicyFactory | None = None,
        weights: Mapping[str, torch.Tensor] | None = None,
        on_step: Callable[[StepReport], None] = lambda report: None,
        watch: Watch = unwatched,
    ) -> None:
        """`policy` is by default a GaussianPolicy, `weights` a fresh policy drawn from the seed."""
        self.settings = settings
        self._environments = environments
        self._policy = policy or partial(GaussianPolicy, hidden=settings.hidden)
        self._weights = weights
        self._on_step = on_step
        self._watch = watch

    def run(self) -> LocalResult:
        """Train all batches; not to be called where an event loop is running."""
        plan = self.settings.plan
        env, inference = BusyMeter(width=plan.shards), BusyMeter(width=plan.inference_ranks)
        learning = BusyMeter()
        with ExitStack() as stack:
            shards = [stack.enter_context(closing(self._shard(number, env))) for number in range(plan.shards)]
            model = self._model(shards[0].state_dim, shards[0].action_dim)
            ranks = [
                stack.enter_context(
                    closing(InferenceRank(rank, model=model, busy=inference, watch=self._watch))
                )
                for rank in range(plan.inference_ranks)
            ]
            learner = LocalLearner(settings=self.settings, model=model, busy=learning, watch=self._watch)
            thread = stack.enter_context(closing(LearnerThread(learner, streaming=self.settings.streams)))
            run = LocalRun(
                self.settings,
                shards=shards,
                ranks=ranks,
                learner=thread,
                model=model,
                busy={"env": env, "inference": inference, "learner": learning},
                on_step=self._on_step,
            )
            return asyncio.run(run.train())

    def _shard(self, number: int, busy: BusyMeter) -> Shard:
        return Shard(number, settings=self.settings, build=self._environments, busy=busy)

    def _model(self, state_dim: int, action_dim: int) -> ActorCritic:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            model = self._policy(state_dim=state_dim, action_dim=action_dim)
        if self._weights is not None:
            model.load_state_dict(self._weights)
        return model


class LocalRun:
    """One run: the loops, the two brokers between them, and the step from batch to batch.

    It ends in data order: the gate closes after the last batch, env shards hang up, inference drains,
    the learner returns.
    """

    def __init__(
        self,
        settings: LocalSettings,
        *,
        shards: list[Shard],
        ranks: list[InferenceRank],
        learner: LearnerThread,
        model: ActorCritic,
        busy: dict[str, BusyMeter],
        on_step: Callable[[StepReport], None],
    ) -> None:
        self._settings = settings
        self._shards, self._ranks, self._learner, self._model = shards, ranks, learner, model
        self._busy = busy
        self._on_step = on_step
        self._requests = _request_broker(settings)
        self._trajectories = TrajectoryBroker(
            settings.plan,
            max_staleness=settings.asynchrony.max_staleness,
            free=settings.asynchrony.train.balance == "free",
            until=settings.batches,
            deadline_s=settings.asynchrony.deadline_s,
        )
        self._reports: list[StepReport] = []
        self._metrics: list[dict[str, float]] = []

    async def train(self) -> LocalResult:
        """Run the loops side by side until the last batch is trained."""
        await together([self._collect(), *self._serve(), self._learn()])
        return LocalResult(
            reports=tuple(self._reports),
            metrics=tuple(self._metrics),
            ledger=self._trajectories.ledger,
            weights=_copy(self._model),
        )

    async def _collect(self) -> None:
        recorder = partial(RolloutRecorder, plan=self._settings.plan)
        await together(
            run_shard(
                shard=number,
                env=shard,
                policy=self._requests,
                trajectories=self._trajectories,
                recorder=recorder,
            )
            for number, shard in enumerate(self._shards)
        )
        self._requests.close()

    def _serve(self) -> Iterator[Coroutine[Any, Any, None]]:
        for number, rank in enumerate(self._ranks):
            yield serve_policy(requests=RankRequests(self._requests, number), policy=rank)

    async def _learn(self) -> None:
        for batch in range(self._settings.batches):
            began = time.monotonic()
            metrics = await self._learner.train(batch, self._trajectories)
            await self._publish(batch + 1)
            self._report(batch + 1, metrics, began)

    async def _publish(self, version: int) -> None:
        """Give every inference rank the weights of `version`, then open the gate for it."""
        if self._settings.asynchrony.deterministic:
            await self._trajectories.collected(version)
        state = _copy(self._model)
        for rank in self._ranks:
            await rank.load(state, version)
        self._trajectories.publish(version)

    def _report(self, step: int, metrics: dict[str, float], began: float) -> None:
        requests, trained = self._requests, self._trajectories.pop_trained(step - 1)
        report = StepReport(
            step=step,
            total=self._settings.batches,
            seconds=time.monotonic() - began,
            env_steps=trained.env_steps,
            episode_return=metrics["env/return"],
            success=metrics["env/success_once"],
            busy={name: Shares.of(meter.pop()) for name, meter in self._busy.items()},
            staleness=trained.staleness,
            batch_size=requests.batch_size,
            batch_wait=requests.batch_wait,
        )
        requests.batch_size, requests.batch_wait = Spread(), Spread()
        self._reports.append(report)
        self._metrics.append(metrics)
        self._on_step(report)


def _request_broker(settings: LocalSettings) -> RequestBroker:
    rollout, deadline_s = settings.asynchrony.rollout, settings.asynchrony.deadline_s
    if not rollout.enabled:
        in_step = settings.asynchrony.deterministic
        return RequestBroker.barrier(settings.plan, deadline_s=deadline_s, in_step=in_step)
    return RequestBroker.dynamic(
        max_size=settings.max_batch_size,
        max_wait=rollout.max_wait,
        deadline_s=deadline_s,
    )


def _copy(model: ActorCritic) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
