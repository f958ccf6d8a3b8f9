"""The inference and learner ranks of a planned run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from rlinf_async.core.scores import WHOLE, ScorePair, ToScore
from rlinf_async.core.tensors import Tree, leaf
from rlinf_async.core.types import MAX_PROBE_SAMPLES, ActionRequest, Piece
from rlinf_async.lab.virtual.times import Times, TrainingTimes, WayTimes
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.ports import PiecePort
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.requests import Pending
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.streaming_learner import Normalize, StreamingLearner
from rlinf_async.loops.weight_broker import WeightBroker
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.observe.spans import SpanLog


class VirtualRank:
    """One inference rank: answers are the version that made them; fills `Policy` and `LoadablePolicy`."""

    def __init__(self, rank: int, times: Times, *, busy: BusyMeter) -> None:
        self._rank, self._times, self._busy = rank, times, busy
        self._weights = asyncio.Lock()
        self.version = 0

    async def act(self, batch: Sequence[Pending]) -> list[int]:
        async with self._weights:
            with self._busy.busy(self._rank):
                await asyncio.sleep(self._pass_s(batch))
            return [self.version] * len(batch)

    def _pass_s(self, batch: Sequence[Pending]) -> float:
        """Return the seconds of a batch of requests for actions, or of one for scores: the learner's own
        pass.
        """
        samples = sum(pending.size for pending in batch)
        if batch[0].request.mode == "score":
            return self._times.training.pass_s(samples)
        return self._times.policy.forward_s(samples)

    async def load(self, version: int, data: object) -> None:
        async with self._weights:
            await asyncio.sleep(self._times.weights.load_s)
            self.version = version


class RankWeights:
    """The weight broker as one rank sees it; fills `loops.ports.WeightPort`."""

    def __init__(self, broker: WeightBroker, rank: int) -> None:
        self._broker, self._rank = broker, rank

    async def next(self) -> tuple[int, Any] | None:
        return await self._broker.next(self._rank)

    async def applied(self, version: int) -> None:
        self._broker.applied(self._rank, version)


class ScoreRequests:
    """The request broker as a learner rank asks it for scores, of which it gets none; fills `PolicyPort`."""

    def __init__(self, requests: RequestBroker, way: WayTimes) -> None:
        self._requests, self._way = requests, way
        self.rollout = requests.rollout

    async def act(self, request: ActionRequest) -> Any:
        half = self._way.request_s / 2
        await asyncio.sleep(half)
        version = await self._requests.act(request)
        await asyncio.sleep(half)
        return {"version": version, "scores": {"none": torch.zeros(request.size)}}


Debt = tuple[str, float]
"""Work that is done, and still has to last: the kind of its span, "" for none, and its seconds."""


def live_samples(lengths: Iterable[int], settings: RunSettings) -> int:
    """Return the samples that are scored of episodes with these lengths, in decisions."""
    # The values of the last observations, of episodes that go on, are of the same policy.
    most = settings.horizon + settings.normalizes
    return sum(min(length, most) for length in lengths)


class VirtualTraining:
    """Trains on nothing; fills `loops.streaming_learner.Training`. What it would take is owed."""

    scored = WHOLE

    def __init__(self, times: TrainingTimes, settings: RunSettings) -> None:
        self._times, self._settings = times, settings
        self.owed: list[Debt] = []

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, batch: int) -> None:
        """Do nothing: no state is kept of the batch before."""

    def rollout(self, pieces: Sequence[Piece]) -> Tree:
        # Owed where no pass is made, too: ranks wait for each other, and another may have to make one.
        self.owed.append(("", 0.0))
        horizon = self._settings.horizon
        lengths = torch.tensor([length for piece in pieces for length in piece.payload])
        if not self._settings.left_out.masked:
            lengths = torch.full_like(lengths, horizon + 1)
        return {"advantages": torch.zeros(horizon, len(lengths)), "lengths": lengths[None]}

    def anchor(self, rollout: Tree, scores: Tree | None = None) -> None:
        if scores is None:
            lengths = leaf(rollout, "lengths").flatten().tolist()
            self.owed[-1] = ("", self._times.pass_s(live_samples(lengths, self._settings)))

    def to_score(self, payload: Any) -> ToScore:
        raise NotImplementedError("a planned run knows by its settings what is scored")

    def estimate(self, rollout: Tree) -> torch.Tensor | None:
        return None

    def samples(self, rollout: Tree, order: torch.Tensor) -> Tree:
        advantages, lengths = leaf(rollout, "advantages"), leaf(rollout, "lengths")
        live = torch.arange(len(advantages))[:, None] < lengths
        return {"advantages": advantages.flatten(), "live": live.flatten()[order]}

    def train_micro_batch(self, samples: Tree, *, steps: bool) -> None:
        self._owe("micro-batch", int(leaf(samples, "live").sum()) * self._times.sample_s)
        if steps:
            self._owe("optimizer step", self._times.optimizer_step_s)

    def train_whole(self, rollout: Tree) -> dict[str, float] | None:
        return None  # the batch is cut and repeated by the learner itself

    def note(self, name: str, value: float) -> None:
        """Do nothing: no metric is learnt from."""

    def sums_to_normalize(self, sums: dict[str, float]) -> dict[str, float]:
        return sums

    def finish(self, normalized: Normalize) -> dict[str, float]:
        self._owe("", self._times.batch_s)
        return {}

    def probe_samples(self, rollout: Tree) -> tuple[Tree, torch.Tensor, ScorePair | None]:
        raise NotImplementedError("a planned run measures no ratios")

    def score(self, inputs: Tree) -> ScorePair:
        raise NotImplementedError("a planned run measures no ratios")

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        return sums

    def _owe(self, kind: str, seconds: float) -> None:
        if kind or seconds:
            self.owed.append((kind, seconds))


class VirtualLearner:
    """One learner rank. Ranks wait for each other before every pass, as sharded models make them."""

    def __init__(
        self,
        rank: int,
        *,
        times: TrainingTimes,
        settings: RunSettings,
        pieces: PiecePort,
        together: asyncio.Barrier | None,
        busy: BusyMeter,
        spans: SpanLog,
    ) -> None:
        self._rank, self._settings, self._pieces = rank, settings, pieces
        self._together, self._busy, self._spans = together, busy, spans
        self._training = VirtualTraining(times, settings)
        self._learner = StreamingLearner(
            self._training,
            settings,
            parameters=lambda: (),
            busy=BusyMeter(),
            rank=rank,
            probe_size=MAX_PROBE_SAMPLES,
        )
        self.trained_at = 0.0
        """The time at which the last micro-batch ended."""

    async def learn(self, batch: int) -> None:
        """Train global batch `batch`."""
        await learn_batch(
            batch=batch,
            pieces=self._pieces,
            learner=self._learner,
            streaming=self._settings.asynchrony.streamer.enabled,
            compute=self._lasting,
            spans=self._spans,
        )

    async def _lasting(self, work: Callable[..., Any], *arguments: object) -> Any:
        result = work(*arguments)
        debts, self._training.owed = self._training.owed, []
        for kind, seconds in debts:
            if self._together is not None:
                await self._together.wait()
            with self._busy.busy(self._rank), self._spans.span(kind) if kind else nullcontext():
                await asyncio.sleep(seconds)
            if kind == "micro-batch":
                self.trained_at = asyncio.get_running_loop().time()
        return result
