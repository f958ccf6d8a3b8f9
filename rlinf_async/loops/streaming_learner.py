"""Trains one learner rank on the pieces of a batch, whatever the framework.

Theory of operation. Pieces arrive in any order, all at once or one by one. They are taken in together, as
many as fill a micro-batch, because a smaller forward pass costs as much. From then on a rollout, [T, B, ...],
goes one of two ways:

    streamed   anchored, estimated, scaled, shuffled, cut into micro-batches, and trained on at once
    kept       anchored, and trained on with all others when the batch is complete

Level 3 streams, with two exceptions. A run whose advantages are normalised over the whole batch defers
where it has several update epochs, because the normalisation is exact then and little is lost: all but one of
the epochs come after the batch is complete anyway. And a first batch is kept, as there is no batch before it
whose statistics could scale it.

Where a pass has several optimizer steps, every rollout is spread over them: an equal share is for each step,
the first step's is trained on at once, and those of the others wait for the batch to be complete. So the
optimizer does not step before the last rollout is taken in, and all are anchored at the weights with which
the batch began.

Advantages are normalised when they are trained on, by what is known then: those of a first step that begins
before the batch is complete by the batch before, all others by the batch itself.

Decisions are taken from counts and never from arrival times, so that all ranks of a sharded model make the
same forward passes and the same optimizer steps. The one that follows from arrival, how many of the next
pieces inference has scored (`loops.scoring`), all ranks take together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.ratios import RatioProbe, averages
from rlinf_async.core.scores import Scored, ToScore
from rlinf_async.core.streaming import AdvantageScale, MicroBatchStream, shares
from rlinf_async.core.tensors import (
    Tree,
    concatenate,
    leaf,
    lengthened,
    rows_of,
    size_of,
    slice_samples,
)
from rlinf_async.core.types import MAX_PROBE_SAMPLES, Piece
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.observe.meters import BusyMeter

Pair = tuple[torch.Tensor, torch.Tensor]
Normalize = Callable[[torch.Tensor], torch.Tensor]


class Training(Protocol):
    """The part of a learner rank that a framework provides. Rollouts are [T, B, ...], samples [N, ...]."""

    @property
    def scored(self) -> Scored:
        """The part of an action that its log-probabilities are of, known from the first rollout on."""

    def working(self) -> AbstractContextManager[None]:
        """The block in which the learner computes."""

    def begin(self, batch: int) -> None:
        """Batch `batch` is about to be trained: no gradients, no metrics."""

    def rollout(self, pieces: Sequence[Piece]) -> Tree:
        """The pieces side by side, masked, as inference has recorded them."""

    def to_score(self, payload: Any) -> ToScore:
        """What inference is to score of a piece; it is asked for in any thread."""

    def anchor(self, rollout: Tree, scores: Tree | None = None) -> None:
        """Log-probabilities of the proximal policy, and values, for the rollout.

        They are in `scores`, [T + 1, B, ...], where inference has scored it, which holds the weights that
        the batch began with; else it is scored by the present ones.
        """

    def estimate(self, rollout: Tree) -> torch.Tensor | None:
        """Add `advantages`, not yet normalised over the batch, and returns; the mask of those that count."""

    def samples(self, rollout: Tree, order: torch.Tensor) -> Tree:
        """The T * B samples of a rollout, in this order."""

    def train_micro_batch(self, samples: Tree, *, steps: bool) -> None:
        """Accumulate gradients, and make an optimizer step of them if it `steps`."""

    def train_whole(self, rollout: Tree) -> dict[str, float] | None:
        """Train a complete batch as the framework itself would, all epochs, and return the metrics.

        None if the framework has no such training; the batch is then estimated, cut and repeated here.
        """

    def note(self, name: str, value: float) -> None:
        """A metric of training; `finish` returns its mean."""

    def sums_to_normalize(self, sums: dict[str, float]) -> dict[str, float]:
        """Each sum, added over the learner ranks whose advantages the framework normalises together."""

    def finish(self, normalized: Normalize) -> dict[str, float]:
        """The last optimizer step of the batch is made: its metrics, of advantages as the batch has
        `normalized` them.
        """

    def probe_samples(self, rollout: Tree) -> tuple[Tree, torch.Tensor, Pair | None]:
        """Inputs that `score` takes, the staleness of each, and what `score` returns, where it is known."""

    def score(self, inputs: Tree) -> Pair:
        """Log-probabilities by the present weights, and those that were stored when they were sampled."""

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        """Each sum, added over all learner ranks."""


class StreamingLearner:
    """Trains one global batch at a time on one rank; fills `ports.Learner`. See the module's theory."""

    def __init__(
        self,
        training: Training,
        settings: RunSettings,
        *,
        parameters: Callable[[], Sequence[torch.Tensor]],
        busy: BusyMeter,
        rank: int = 0,
        probe_size: int = MAX_PROBE_SAMPLES,
    ) -> None:
        """`parameters` are those that are trained, as `PastWeights` wants them; ratios are measured on
        `probe_size` samples of each staleness."""
        self.training = training
        self._settings = settings
        self._busy = busy
        self._rank = rank
        self._scale = AdvantageScale()
        self._stream = MicroBatchStream(
            micro_batch_size=settings.micro_batch_size, micro_batches_per_step=settings.micro_batches_per_step
        )
        held = self._mean_bytes(parameters) if settings.asynchrony.measures_ratios else 0.0
        compares = settings.compares_versions(held)
        self._remembers = settings.remembered_versions(held)
        self._past = PastWeights(parameters, keep=max(1, self._remembers))
        self._probe: RatioProbe | None = None
        if compares or (settings.asynchrony.measures_ratios and settings.asynchrony.recomputes):
            self._probe = RatioProbe(
                self._past if compares else None,
                training.score,
                max_staleness=settings.asynchrony.max_staleness,
                interpolates=settings.asynchrony.advanced.proximal == "loglinear",
                size=probe_size,
            )

    def _mean_bytes(self, parameters: Callable[[], Sequence[torch.Tensor]]) -> float:
        """Return the bytes that a rank trains, averaged over the ranks: shards differ by a little, and all
        ranks must decide alike.
        """
        own = float(sum(tensor.nbytes for tensor in parameters()))
        return self.training.summed({"bytes": own})["bytes"] / self._settings.plan.learner_ranks

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._arrived_pieces: list[Piece] = []
        self._missing = self._settings.plan.pieces_per_rank
        self._kept_rollouts: dict[tuple[int, int, int], Tree] = {}
        self._samples: list[Tree] = []
        self._trained_samples = self._streamed_samples = self._spread_samples = 0
        self._anchored_pieces = self._pieces_anchored_ahead = self._scored_pieces = 0
        self._later: list[list[Tree]] = [[] for _ in range(self._settings.optimizer_steps)]
        # Seeded by batch, so that a resumed run shuffles as the one that was interrupted; 1009 keeps
        # the seeds of up to that many ranks apart.
        self._shuffle = torch.Generator().manual_seed(self._settings.seed + self._rank + 1009 * batch)
        with self.training.working():
            self.training.begin(batch)
            if self._settings.renews_at(batch):
                self._past.forget()  # a run that is resumed here does not have them
            # The probe of the batch before has remembered them already, where it compares versions.
            if self._remembers and self._past.present != batch:
                self._past.remember(batch)
        if self._probe is not None:
            self._probe.begin(batch)

    def accept(self, pieces: Sequence[Piece]) -> bool:
        if pieces:
            # Whatever was done until now was done before these pieces, perhaps the last, had come.
            self._streamed_samples, self._pieces_anchored_ahead = self._trained_samples, self._anchored_pieces
            self._arrived_pieces += pieces
            self._missing -= len(pieces)
        if self._completes():
            with self._busy.busy(), self.training.working():
                self._take_in(*self._next())
        return self._completes()

    def to_score(self, payload: Any) -> ToScore:
        return self.training.to_score(payload)

    def _completes(self) -> bool:
        """Return True if the pieces that have arrived are enough to be taken in."""
        # The last pieces of a batch may be fewer: nothing more comes to fill a micro-batch with.
        least = self._settings.pieces_taken_together if self._missing else 1
        return len(self._arrived_pieces) >= least

    def _next(self) -> tuple[list[Piece], list[Piece]]:
        """The pieces to take in: those that are scored here, and those that inference has scored."""
        together = min(self._settings.pieces_taken_together, len(self._arrived_pieces))
        if self._arrived_pieces[0].scores is None:  # and so are those of all others, on every rank
            own, self._arrived_pieces = self._arrived_pieces[:together], self._arrived_pieces[together:]
            return own, []
        # Counted before they are sorted: meanwhile there may be more.
        scored_count = sum(map(_is_scored, self._arrived_pieces))
        use_count = together - self._most_of_ranks(max(0, together - scored_count))
        # Inference scores in order of arrival: what it would get to last is taken back.
        order = sorted(self._arrived_pieces, key=lambda piece: not _is_scored(piece))
        stop = len(order) - (together - use_count)
        self._arrived_pieces = order[use_count:stop]
        for piece in order[stop:]:
            # Scores that have come since the count are not used: ranks have agreed on how many are.
            piece.scores.cancel()  # type: ignore[union-attr]
        return order[stop:], order[:use_count]

    def _most_of_ranks(self, count: int) -> int:
        """The largest `count` of all ranks: those of a sharded model make the same passes."""
        counts = {str(rank): 0.0 for rank in range(self._settings.plan.learner_ranks)}
        return int(max(self.training.summed({**counts, str(self._rank): float(count)}).values()))

    def finish(self) -> dict[str, float]:
        with self._busy.busy(), self.training.working():
            metrics = self._finish()
            if self._settings.anchors_ahead:
                metrics["train/anchored"] = self._pieces_anchored_ahead / self._settings.plan.pieces_per_rank
            if self._settings.scored_by_inference:
                metrics["train/scored_by_inference"] = (
                    self._scored_pieces / self._settings.plan.pieces_per_rank
                )
            if self._probe is not None:
                # After the last step: the probe remembers the present weights as those of the next batch.
                ratios = averages(self.training.summed(self._probe.finish(self.training.scored)))
                metrics |= {f"train/{name}": value for name, value in ratios.items()}
            return metrics

    def _take_in(self, own: Sequence[Piece], scored_pieces: Sequence[Piece]) -> None:
        # Sorted, so that pieces that are taken in together have one order, whichever came first.
        pieces = [
            piece for part in (own, scored_pieces) for piece in sorted(part, key=lambda piece: piece.key)
        ]
        rollout = self.training.rollout(pieces)
        if self._settings.asynchrony.recomputes:
            rollout = self._anchored_by_both(rollout, pieces[: len(own)], pieces[len(own) :])
            self._anchored_pieces += len(pieces)
            self._scored_pieces += len(scored_pieces)
        if self._probe is not None:
            self._probe.add(*self.training.probe_samples(rollout))
        if self._settings.streams and (self._scale.ready or not self._settings.normalizes):
            self._estimate(rollout)
            self._train_rollout(rollout)
            return
        start = 0
        for piece in pieces:
            self._kept_rollouts[piece.key] = slice_samples(rollout, start, start + piece.size, dim=1)
            start += piece.size

    def _anchored_by_both(self, rollout: Tree, own: Sequence[Piece], scored_pieces: Sequence[Piece]) -> Tree:
        """The rollout of `own` pieces, which the present weights score, beside those of `scored_pieces`."""
        if not scored_pieces:
            self.training.anchor(rollout)
            return rollout
        scores = concatenate([self._scores_of(piece) for piece in scored_pieces], dim=1)
        if not own:
            self.training.anchor(rollout, scores)
            return rollout
        width, end = (sum(piece.size for piece in some) for some in (own, [*own, *scored_pieces]))
        parts = [slice_samples(rollout, *each, dim=1) for each in ((0, width), (width, end))]
        self.training.anchor(parts[0])
        self.training.anchor(parts[1], scores)
        return concatenate(parts, dim=1)

    def _scores_of(self, piece: Piece) -> Tree:
        """The scores of a piece, [T + 1, B, ...], as those of one whose episodes do not end."""
        scores: Tree = piece.scores.result()  # type: ignore[union-attr]
        return lengthened(scores, self._settings.horizon + 1 - size_of(scores))

    def _estimate(self, rollout: Tree) -> None:
        mask = self.training.estimate(rollout)
        if self._settings.normalizes:
            self._scale.observe(rollout["advantages"], mask)  # type: ignore[arg-type]

    def _finish(self) -> dict[str, float]:
        # In the order of the synchronous loop, whatever arrived first.
        whole = (
            concatenate([self._kept_rollouts[key] for key in sorted(self._kept_rollouts)], dim=1)
            if self._kept_rollouts
            else None
        )
        self._kept_rollouts.clear()
        if whole is not None and not self._settings.streams:
            # Such a framework normalises the batch by itself; the scale here serves no batch of this run.
            metrics = self.training.train_whole(whole)
            if metrics is not None:
                # The framework has made its steps: the weights are no version that is remembered.
                self._past.changed()
                return metrics
        if whole is not None:
            self._estimate(whole)
        # All is estimated: whatever is trained from here on is normalised by the batch itself.
        if self._settings.normalizes:
            self._scale.close(self.training.sums_to_normalize)
        if whole is not None:
            self._train_rollout(whole)
        self._train_later_steps()
        self._stream.finish()
        self._repeat_epochs()
        per_rank = self._settings.samples_per_batch / self._settings.plan.learner_ranks
        self.training.note("streamed", self._streamed_samples / per_rank)
        return self.training.finish(self._normalize)

    def _train_rollout(self, rollout: Tree) -> None:
        steps, width = leaf(rollout, "advantages").shape[:2]
        samples = self.training.samples(rollout, torch.randperm(steps * width, generator=self._shuffle))
        # Kept for the epochs after the first alone: a batch of pictures would be held until the next one.
        if self._settings.update_epoch > 1:
            self._samples.append(samples)
        if self._settings.spreads_steps:
            samples = self._spread(samples)
        self._trained_samples += size_of(samples)
        self._train_samples(samples)

    def _spread(self, samples: Tree) -> Tree:
        """The share of the first optimizer step; those of the others are kept for them."""
        size, start = size_of(samples), 0
        parts = []
        for share in shares(
            self._spread_samples, self._spread_samples + size, self._settings.optimizer_steps
        ):
            parts.append(slice_samples(samples, start, start + share))
            start += share
        self._spread_samples += size
        for later, part in zip(self._later[1:], parts[1:], strict=True):
            later.append(part)
        return parts[0]

    def _train_later_steps(self) -> None:
        # Step by step: the stream cuts by counts, and would mix samples of two steps in one.
        for parts in self._later[1:]:
            for samples in parts:
                self._train_samples(samples)
        self._later.clear()

    def _train_samples(self, samples: Tree) -> None:
        if self._settings.normalizes:
            self.training.note("advantage_scale", self._scale.divisor)
            samples = {**samples, "advantages": self._normalize(leaf(samples, "advantages"))}
        for micro_batch in self._stream.add(samples):
            self.training.train_micro_batch(micro_batch.samples, steps=micro_batch.steps)
            if micro_batch.steps:
                # From here on the weights are no version that is remembered.
                self._past.changed()

    def _normalize(self, advantages: torch.Tensor) -> torch.Tensor:
        return self._scale.apply(advantages) if self._settings.normalizes else advantages

    def _repeat_epochs(self) -> None:
        """The update epochs after the first, over the whole batch, shuffled once."""
        if self._settings.update_epoch == 1:
            return
        # The pieces were shuffled one by one; without this, later epochs would train on them in their order
        # of arrival.
        samples = (
            self._samples[0] if len(self._samples) == 1 else self._shuffle_samples(concatenate(self._samples))
        )
        self._samples.clear()
        for _ in range(self._settings.update_epoch - 1):
            self._train_samples(samples)
            self._stream.finish()

    def _shuffle_samples(self, samples: Tree) -> Tree:
        order = torch.randperm(size_of(samples), generator=self._shuffle)
        return rows_of(samples, order)


def _is_scored(piece: Piece) -> bool:
    return piece.scores is not None and piece.scores.done()
