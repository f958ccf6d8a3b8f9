"""The process of one learner rank, which trains batch by batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from rlinf_async.core.failures import ForeignError, in_words
from rlinf_async.core.premise import Premise
from rlinf_async.loops.finite import SkippedSteps
from rlinf_async.loops.foreign import contained, harmless
from rlinf_async.loops.learner import PrefetchedPieces, learn_batch
from rlinf_async.loops.ports import AnchoredLearner, PiecePort
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.scoring import ScoredPieces
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.handles import Handle, RequestChannels
from rlinf_async.ray_runtime.processes.gpu_share import KeepsToShare
from rlinf_async.ray_runtime.processes.request_clients import RequestClient
from rlinf_async.ray_runtime.processes.rollout_data import HeldPieces, PieceClient
from rlinf_async.ray_runtime.processes.seeds import learner_seed, seed_version
from rlinf_async.ray_runtime.publication.weights import WeightSender
from rlinf_async.wire.connection import Address


def as_save_error(error: BaseException) -> ForeignError:
    """Return the system's error behind a framework's failed save; the framework's own if there is none.

    torch's CheckpointException has the errors of the ranks in `failures`, each with its frames.
    """
    while isinstance(failures := getattr(error, "failures", None), Mapping) and failures:
        failure = next(iter(failures.values()))
        error = failure[0] if isinstance(failure, tuple) else failure
    said: BaseException | None = error
    while said is not None and not isinstance(said, OSError):
        said = said.__cause__ or said.__context__
    return ForeignError.of(said or error)


class LearnerRank(KeepsToShare):
    """One learner rank; a host gives the learner and the copies of its weights.

    A batch is computed in the learner thread, so that the process answers calls meanwhile.
    """

    save_checkpoint: Callable[..., Any]
    """The framework's own method."""
    premise: Premise | None = None
    """The finding about the first batch of the run, which a host examines; None until then."""

    def start_learning(
        self, *, rank: int, initializer: Callable[..., object], initargs: tuple[Any, ...] = ()
    ) -> None:
        """Begin as learner rank `rank`; `initializer` is called first in the learner thread."""
        self._learner_rank = rank
        self._busy = BusyMeter()
        self.skipped = SkippedSteps()
        self._learner: AnchoredLearner | None = None
        self._pieces: PiecePort | None = None
        self._piece_data = HeldPieces()
        self._asks = False
        self._weight_sender: WeightSender | None = None
        self._learning_thread = ThreadPoolExecutor(
            1, thread_name_prefix="learner", initializer=initializer, initargs=initargs
        )

    async def piece_address(self) -> Address:
        """The address for env workers that hand over the data of this rank's pieces."""
        return self._piece_data.address()

    def make_learner(self, settings: Any, busy: BusyMeter) -> AnchoredLearner:
        """Return the object that trains batches, and counts its time as `busy`. A host gives it."""
        raise NotImplementedError

    def make_sender(self) -> WeightSender:
        """Return the object that copies and sends the weights of this rank. A host gives it."""
        raise NotImplementedError

    async def compute(self, work: Callable[..., Any], *arguments: object) -> Any:
        """Call `work` in the learner thread; any exception is raised here as an ordinary error."""
        job = partial(work, *arguments)
        return await asyncio.get_running_loop().run_in_executor(
            self._learning_thread, contained, job, harmless
        )

    def wants_values(self, settings: Any) -> bool:
        """Return True if inference is to return the critic's values, too. A host decides."""
        raise NotImplementedError

    async def learn(
        self, batch: int, settings: Any, requests: RequestChannels, coordinator: Handle
    ) -> dict[str, float]:
        """Train global batch `batch`, offer the new weights, and return the metrics of the batch.

        `settings` is a `RunSettings`; `requests` are the channels to inference.
        """
        if self._learner is None or self._pieces is None:
            self._learner = self.make_learner(settings, self._busy)
            self._pieces = PrefetchedPieces(
                PieceClient(coordinator, self._piece_data, rank=self._learner_rank),
                until=settings.batches,
                together=settings.pieces_taken_together,
            )
        # The first batch has shown whether inference and learner compute the same scores.
        if settings.scored_by_inference and not self._asks and self.premise and self.premise.alike:
            self._asks = True
            self._pieces = self._with_scores(self._pieces, self._learner, settings, requests, coordinator)
        self.skipped.begin(batch, settings.asynchrony.advanced)
        if settings.asynchrony.deterministic:
            # Seeded by rank and batch: ranks sample apart, and a resumed run samples as the interrupted one
            # did.
            await self.compute(seed_version, learner_seed(settings.seed, self._learner_rank), batch)
        metrics = await learn_batch(
            batch=batch,
            pieces=self._pieces,
            learner=self._learner,
            streaming=settings.asynchrony.streamer.enabled,
            compute=self.compute,
            spans=self.spans,
        )
        # Inside the call, before the next batch begins: the copy is of the weights after this batch.
        metrics["publication_seconds"] = await self.offer_weights(batch + 1, coordinator)
        # `LEARN_KEYS` in `step_reporter` lists "busy" and "publication_seconds", which are no metrics.
        return {**metrics, **self.skipped.pop(), "busy": self._busy.pop()[0]}

    def _with_scores(
        self,
        pieces: PiecePort,
        learner: AnchoredLearner,
        settings: RunSettings,
        requests: RequestChannels,
        coordinator: Handle,
    ) -> PiecePort:
        return ScoredPieces(
            pieces,
            RequestClient(requests),
            settings,
            rank=self._learner_rank,
            published=coordinator.weights_published.remote,
            inputs=learner.to_score,
            values=self.wants_values(settings),
        )

    async def try_to_save(self, *arguments: object) -> str | None:
        """Write a checkpoint by the framework's own `save_checkpoint`; return the error, if any."""
        try:
            await self.compute(contained, partial(self.save_checkpoint, *arguments), as_save_error)
        except Exception as error:  # noqa: BLE001 - the driver judges the error
            return in_words(error)
        return None

    async def known_premise(self) -> dict[str, Any] | None:
        """The premise of the run as plain data, for a checkpoint."""
        return asdict(self.premise) if self.premise else None

    async def resume_premise(self, premise: dict[str, Any] | None) -> None:
        """Take the premise that `known_premise` returned in the interrupted run."""
        self.premise = Premise(**premise) if premise else None

    async def expect_receivers(self, types: dict[str, torch.dtype], keeps: bool) -> None:
        """Take the dtypes of the inference ranks' tensors, by name: no other tensors are sent, and none in a
        wider dtype.

        `keeps`: True if inference ranks may be started again; a new rank needs all weights.
        """
        self.sender.expect(types, keeps=keeps)

    async def offer_weights(self, version: int, coordinator: Handle) -> float:
        """Copy the weights, have them sent as `version` in the background, and return the seconds taken."""
        return await self.sender.offer(version, coordinator, self.spans)

    async def weights_sent(self) -> None:
        """Wait until the last copy of the weights is offered; raises the error that has prevented it."""
        await self.sender.sent()

    @property
    def sender(self) -> WeightSender:
        """The sender of this rank; made at the first use, when there are weights."""
        if self._weight_sender is None:
            self._weight_sender = self.make_sender()
        return self._weight_sender
