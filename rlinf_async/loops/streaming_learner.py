"""Trains one learner rank on the pieces of a batch, in any framework.

Theory of operation. Pieces arrive in any order, all at once or one by one. As many as fill a micro-batch are
taken in together, because a smaller forward pass costs as much. From then on their rollout, [T, B, ...], goes
one of two ways:

    streamed   anchored, estimated, scaled, shuffled, cut into micro-batches, and trained on at once
    kept       anchored, and trained on with all others when the batch is complete

Level 3 streams, with two exceptions. A run that normalises advantages over the whole batch, and has several
update epochs, keeps its rollouts: so the normalisation is exact, and little is lost, as all epochs but one
come after the batch is complete anyway. And the first batch is kept, as no batch before it has statistics to
scale it with.

If a pass over the batch has several optimizer steps, every rollout is spread over them in equal shares: the
share of the first step is trained on at once, the others wait until the batch is complete. So the optimizer
does not step before the last rollout is taken in, and all rollouts are anchored at the weights that began the
batch.

Advantages are normalised when they are trained on, with the statistics known by then: in a first step that
begins before the batch is complete those of the batch before, otherwise those of the batch itself.

Decisions depend on counts and never on arrival times, so that all ranks of a sharded model make the same
forward passes and the same optimizer steps. Only one decision depends on arrival, the number of the next
pieces that inference has scored (`loops.scoring`): the ranks agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.ratios import RatioProbe, averages
from rlinf_async.core.scores import Scored, ScorePair, ToScore
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

Normalize = Callable[[torch.Tensor], torch.Tensor]


class Training(Protocol):
    """The part of a learner rank that a framework provides. Rollouts are [T, B, ...], samples [N, ...]."""

    @property
    def scored(self) -> Scored:
        """The event that the log-probabilities are of, known from the first rollout on."""

    def working(self) -> AbstractContextManager[None]:
        """The learner computes inside the block."""

    def begin(self, batch: int) -> None:
        """Start batch `batch`, without gradients and metrics."""

    def rollout(self, pieces: Sequence[Piece]) -> Tree:
        """Join the pieces along B, with their mask, as inference has recorded them."""

    def to_score(self, payload: Any) -> ToScore:
        """Return the samples of a piece that inference will score. Called from any thread."""

    def anchor(self, rollout: Tree, scores: Tree | None = None) -> None:
        """Add the log-probabilities of the proximal policy, and values, to the rollout.

        They are in `scores`, [T + 1, B, ...], if inference has scored the rollout, with the weights that
        began the batch; if None, the present weights score it.
        """

    def estimate(self, rollout: Tree) -> torch.Tensor | None:
        """Add `advantages`, not yet normalised over the batch, and `returns`; return the mask of valid
        ones."""

    def samples(self, rollout: Tree, order: torch.Tensor) -> Tree:
        """Return the T * B samples of a rollout, in the order `order`."""

    def train_micro_batch(self, samples: Tree, *, steps: bool) -> None:
        """Accumulate gradients; with `steps` make an optimizer step afterwards."""

    def train_whole(self, rollout: Tree) -> dict[str, float] | None:
        """Train a complete batch as the framework itself would, all epochs, and return the metrics.

        None if the framework has no such training: then the batch is estimated, cut and repeated here.
        """

    def note(self, name: str, value: float) -> None:
        """Note a metric of training; `finish` returns its mean."""

    def sums_to_normalize(self, sums: dict[str, float]) -> dict[str, float]:
        """Add each sum over the learner ranks that normalise advantages together in the framework."""

    def finish(self, normalized: Normalize) -> dict[str, float]:
        """Return the metrics of the batch after its last optimizer step; `normalized` normalises advantages
        as in the batch.
        """

    def probe_samples(self, rollout: Tree) -> tuple[Tree, torch.Tensor, ScorePair | None]:
        """(inputs of `score`, staleness of each sample, result of `score` if known)."""

    def score(self, inputs: Tree) -> ScorePair:
        """Return log-probabilities by the present weights, and those stored when the samples were drawn."""

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        """Add each sum over all learner ranks."""


class OneRank(Training):
    """The training of a single rank whose framework has no training of whole batches."""

    def train_whole(self, rollout: Tree) -> dict[str, float] | None:
        return None

    def sums_to_normalize(self, sums: dict[str, float]) -> dict[str, float]:
        return sums

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        return sums


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
        """`parameters` returns the trained tensors, as for `PastWeights`; ratios are measured on `probe_size`
        samples of each staleness."""
        self.training = training
        self._settings = settings
        self._busy = busy
        self._rank = rank
        self._scale = AdvantageScale()
        self._stream = MicroBatchStream(
            micro_batch_size=settings.micro_batch_size, micro_batches_per_step=settings.micro_batches_per_step
        )
        trained_bytes = self._mean_bytes(parameters) if settings.asynchrony.measures_ratios else 0.0
        compares = settings.compares_versions(trained_bytes)
        self._remembers = settings.remembered_versions(trained_bytes)
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
        """Return the trained bytes per rank, averaged over ranks: shards differ a little, and all ranks must
        decide alike.
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
        # Seeded by batch, so that a resumed run shuffles as the interrupted one; 1009 keeps the seeds of up
        # to 1009 ranks apart.
        self._shuffle = torch.Generator().manual_seed(self._settings.seed + self._rank + 1009 * batch)
        with self.training.working():
            self.training.begin(batch)
            if self._settings.renews_at(batch):
                self._past.forget()  # as a run that is resumed here has no past weights
            # If the probe compares versions, it has remembered them at the end of the batch before.
            if self._remembers and self._past.present != batch:
                self._past.remember(batch)
        if self._probe is not None:
            self._probe.begin(batch)

    def accept(self, pieces: Sequence[Piece]) -> bool:
        if pieces:
            # All work so far was done before these pieces, perhaps the last of the batch, had arrived.
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
        # The last pieces of a batch may be fewer than fill a micro-batch.
        least = self._settings.pieces_taken_together if self._missing else 1
        return len(self._arrived_pieces) >= least

    def _next(self) -> tuple[list[Piece], list[Piece]]:
        """Return the pieces to take in: (those to be scored here, those that inference has scored)."""
        together = min(self._settings.pieces_taken_together, len(self._arrived_pieces))
        if self._arrived_pieces[0].scores is None:  # then inference scores no piece of this run
            own, self._arrived_pieces = self._arrived_pieces[:together], self._arrived_pieces[together:]
            return own, []
        # Counted before the sort, as more scores may arrive meanwhile.
        scored_count = sum(map(_is_scored, self._arrived_pieces))
        use_count = together - self._most_of_ranks(max(0, together - scored_count))
        # Inference scores in order of arrival: the pieces that it would score last are taken back.
        order = sorted(self._arrived_pieces, key=lambda piece: not _is_scored(piece))
        stop = len(order) - (together - use_count)
        self._arrived_pieces = order[use_count:stop]
        for piece in order[stop:]:
            # Scores that have arrived since the count are not used: the ranks have agreed on the number.
            piece.scores.cancel()  # type: ignore[union-attr]
        return order[stop:], order[:use_count]

    def _most_of_ranks(self, count: int) -> int:
        """The largest `count` of all ranks, as the ranks of a sharded model must make the same passes."""
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
                # After the last step, as the probe remembers the present weights for the next batch.
                ratios = averages(self.training.summed(self._probe.finish(self.training.scored)))
                metrics |= {f"train/{name}": value for name, value in ratios.items()}
            return metrics

    def _take_in(self, own: Sequence[Piece], scored_pieces: Sequence[Piece]) -> None:
        # Sorted, so that the order of pieces taken in together does not depend on their arrival.
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
        """Anchor the rollout: the present weights score the `own` pieces, its first columns; inference has
        scored `scored_pieces`, the others."""
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
        """The scores of a piece, [T + 1, B, ...], padded to the full horizon if it ended early."""
        scores: Tree = piece.scores.result()  # type: ignore[union-attr]
        return lengthened(scores, self._settings.horizon + 1 - size_of(scores))

    def _estimate(self, rollout: Tree) -> None:
        mask = self.training.estimate(rollout)
        if self._settings.normalizes:
            self._scale.observe(rollout["advantages"], mask)  # type: ignore[arg-type]

    def _finish(self) -> dict[str, float]:
        # In the order of the synchronous loop, not of arrival.
        whole = (
            concatenate([self._kept_rollouts[key] for key in sorted(self._kept_rollouts)], dim=1)
            if self._kept_rollouts
            else None
        )
        self._kept_rollouts.clear()
        if whole is not None and not self._settings.streams:
            # A framework with `train_whole` normalises by itself; `_scale` is then unused in the whole run.
            metrics = self.training.train_whole(whole)
            if metrics is not None:
                # The framework has made its steps: the weights equal no remembered version any more.
                self._past.changed()
                return metrics
        if whole is not None:
            self._estimate(whole)
        # All rollouts are estimated: from here on the batch's own statistics normalise it.
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
        # Kept only for further epochs, or a batch of images would stay in memory until the next one.
        if self._settings.update_epoch > 1:
            self._samples.append(samples)
        if self._settings.spreads_steps:
            samples = self._spread(samples)
        self._trained_samples += size_of(samples)
        self._train_samples(samples)

    def _spread(self, samples: Tree) -> Tree:
        """Return the first optimizer step's share of the samples; keep the shares of the later steps."""
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
        # Step by step: the stream cuts by counts, and would otherwise mix samples of two steps.
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
                # The weights equal no remembered version any more.
                self._past.changed()

    def _normalize(self, advantages: torch.Tensor) -> torch.Tensor:
        return self._scale.apply(advantages) if self._settings.normalizes else advantages

    def _repeat_epochs(self) -> None:
        """Train the update epochs after the first, over the whole batch, shuffled once."""
        if self._settings.update_epoch == 1:
            return
        # The rollouts were shuffled one by one: without this, later epochs would train on them in the order
        # of their arrival.
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
