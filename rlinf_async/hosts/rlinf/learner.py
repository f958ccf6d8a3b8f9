"""The learner port over an RLinf actor: pieces in, optimizer steps out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rlinf.utils.distributed import all_reduce_dict
from rlinf.utils.metric_utils import compute_rollout_metrics

from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.ratios import SAMPLES, RatioProbe, averages
from rlinf_async.core.streaming import AdvantageScale, MicroBatchStream
from rlinf_async.core.tensors import Tree, concatenate, map_tensors, size_of, slice_samples
from rlinf_async.core.tracing import BusyMeter
from rlinf_async.core.types import Piece
from rlinf_async.hosts.rlinf.advantages import estimate, estimate_vtrace
from rlinf_async.hosts.rlinf.compat import explained_variance, process_nested_dict_for_train
from rlinf_async.hosts.rlinf.losses import at_ratio_level
from rlinf_async.hosts.rlinf.premise import Premise, compare, judge
from rlinf_async.hosts.rlinf.proximal import forward, recompute, samples_of
from rlinf_async.hosts.rlinf.settings import LOSSES, Settings
from rlinf_async.hosts.rlinf.shards import TrainedShards

REPORTED = ("rewards", "advantages", "returns", "loss_mask")
"""Fields of a rollout that RLinf's rollout metrics are made of."""


class FSDPLearner:
    """Trains one global batch at a time on one rank.

    Pieces are taken in with RLinf's own functions, in groups that fill a micro-batch, cut by count. What
    streams is trained on at once; what does not is trained by RLinf's own training when the batch is
    complete. Off-policy pieces are re-anchored as they are taken in: the log-probabilities and values of
    the proximal policy are recomputed, unless the run interpolates them.
    """

    def __init__(self, actor: Any, settings: Settings, busy: BusyMeter) -> None:
        self._actor = actor
        self._settings = settings
        self._busy = busy
        self._correction, self._train = settings.asynchrony.correction, settings.asynchrony.train
        self._scale = AdvantageScale()
        self._stream = MicroBatchStream(
            micro_batch_size=settings.micro_batch_size, micro_batches_per_step=settings.micro_batches_per_step
        )
        self._past = PastWeights(TrainedShards(actor), keep=max(1, settings.remembered_versions))
        self._probe = self._ratio_probe() if settings.asynchrony.measures_ratios else None
        self._premise = None if settings.asynchrony.train.measure_ratios else Premise()
        if self._correction != "none":
            actor.correct(LOSSES[settings.loss], self._train)

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._metrics: dict[str, list[float]] = {}
        self._found: dict[str, float] = {}
        self._reports: list[Tree] = []
        self._held: list[Tree] = []
        self._arrived: list[Piece] = []
        self._kept: dict[tuple[int, int, int], Tree] = {}
        self._missing = self._settings.plan.pieces_per_rank
        self._early, self._streamed = False, 0
        self._samples: list[Tree] = []
        self._shuffle = torch.Generator().manual_seed(self._settings.seed + self._actor._rank + 1009 * batch)
        self._actor.optimizer.zero_grad()
        self._actor.model.train()
        if self._settings.remembered_versions and self._past.present != batch:
            self._past.remember(batch)
        if self._probe is not None:
            self._probe.begin(batch)

    def accept(self, pieces: Sequence[Piece]) -> None:
        with self._busy.busy():
            self._early = len(pieces) < self._missing
            for piece in pieces:
                self._arrived.append(piece)
                self._missing -= 1
                if len(self._arrived) == self._group or not self._missing:
                    self._take_in(sorted(self._arrived, key=lambda piece: piece.key))
                    self._arrived.clear()

    @property
    def _group(self) -> int:
        """Pieces that are taken in together: forward passes of less than a micro-batch are dear."""
        if not self._settings.asynchrony.streamer.enabled:
            return self._settings.plan.pieces_per_rank
        samples = self._settings.plan.piece_size * self._settings.horizon
        return -(-self._settings.micro_batch_size // samples)

    def _take_in(self, pieces: Sequence[Piece]) -> None:
        rollout = self._rollout(pieces)
        if self._settings.streams:
            self._stream_rollout(rollout)
            return
        size = self._settings.plan.piece_size
        for index, piece in enumerate(pieces):
            self._kept[piece.key] = slice_samples(rollout, index * size, (index + 1) * size, dim=1)

    def finish(self) -> dict[str, float]:
        with self._busy.busy():
            metrics = self._finish_stream() if self._settings.streams else self._train_whole()
            if self._probe is not None:
                sums = all_reduce_dict(self._probe.finish(), op=dist.ReduceOp.SUM)
                metrics |= _named("train", averages(sums))
            return metrics | _named("train", self._found)

    def _rollout(self, pieces: Sequence[Piece]) -> Tree:
        """The pieces side by side, [T, B, ...], masked by RLinf and re-anchored if off-policy."""
        trees = [{name: value for name, value in piece.payload.items() if value != {}} for piece in pieces]
        bootstraps = [tree.pop("bootstrap_inputs", {}) for tree in trees]
        rollout: Tree = self._actor._process_received_rollout_batch(concatenate(trees, dim=1))
        if self._premise is None:
            self._premise = self._examine(rollout)
        if self._settings.asynchrony.recomputes:
            self._anchor(rollout, concatenate(bootstraps))
        if self._probe is not None:
            self._probe_samples(self._probe, rollout)
        return rollout

    def _examine(self, rollout: Tree) -> Premise:
        """Nothing has been trained yet: the weights are those that the newest samples were drawn with."""
        settings, actor = self._settings, self._actor
        values = settings.advantage == "gae"
        sums = compare(actor, rollout, self._batch, most=settings.micro_batch_size, values=values)
        premise = judge(all_reduce_dict(sums, op=dist.ReduceOp.SUM), actor.cfg, actor.log_warning)
        self._found = premise.metrics
        return premise

    def _anchor(self, rollout: Tree, bootstrap_inputs: Tree) -> None:
        """At the policy with which the batch began, also where a part of it has been trained on."""
        with self._past.at(self._batch) if self._settings.anchors_in_the_past else nullcontext():
            recompute(
                self._actor,
                rollout,
                bootstrap_inputs,
                micro_batch_size=self._settings.micro_batch_size,
                values=self._settings.advantage == "gae" and not self._premise.keeps_values,
            )

    def _train_whole(self) -> dict[str, float]:
        """RLinf's own training, unless V-trace takes the place of its advantages."""
        actor = self._actor
        actor.rollout_batch = concatenate([self._kept[key] for key in sorted(self._kept)], dim=1)
        self._kept.clear()
        if self._correction == "vtrace":
            actor.rollout_batch.update(self._estimate(actor.rollout_batch, normalize=True))
            rollout = compute_rollout_metrics(actor.rollout_batch)
        else:
            rollout = actor.compute_advantages_and_returns()
        trained = actor.run_training()
        self._past.changed()
        return _named("rollout", rollout) | _named("train", trained)

    def _estimate(self, rollout: Mapping[str, Any], *, normalize: bool) -> dict[str, torch.Tensor]:
        if self._correction != "vtrace":
            return estimate(self._actor.cfg, rollout, normalize=normalize)
        bound = self._train.weight_bound
        return estimate_vtrace(self._actor.cfg, rollout, max_weight=bound, normalize=normalize)

    def _stream_rollout(self, rollout: Tree) -> None:
        rollout.update(self._estimate(rollout, normalize=False))
        if self._settings.advantage == "gae":
            self._scale.observe(rollout["advantages"], rollout.get("loss_mask"))  # type: ignore[arg-type]
            if not self._scale.ready:
                self._held.append(rollout)  # the first batch is normalised by itself, once it is complete
                return
        self._train_rollout(rollout)

    def _train_rollout(self, rollout: Tree) -> None:
        if self._settings.advantage == "gae":
            self._metrics.setdefault("advantage_scale", []).append(self._scale.divisor)
            rollout["advantages"] = self._scale.apply(rollout["advantages"])  # type: ignore[arg-type]
        self._reports.append({name: rollout.get(name) for name in REPORTED})
        steps, width = rollout["prev_logprobs"].shape[:2]  # type: ignore[union-attr]
        self._streamed += width if self._early else 0
        order = torch.randperm(steps * width, generator=self._shuffle)
        samples: Tree = process_nested_dict_for_train(rollout, order)
        self._samples.append(samples)
        self._train_samples(samples)

    def _train_samples(self, samples: Tree) -> None:
        for micro_batch in self._stream.add(samples):
            self._actor.train_micro_batch(micro_batch.samples, self._metrics, is_last=micro_batch.steps)
            if micro_batch.steps:
                self._actor.finish_global_batch(self._metrics)
                self._past.changed()

    def _finish_stream(self) -> dict[str, float]:
        self._scale.close()
        plan = self._settings.plan
        self._metrics["streamed"] = [self._streamed / (plan.pieces_per_rank * plan.piece_size)]
        for rollout in self._held:
            self._train_rollout(rollout)
        self._stream.finish()
        self._repeat_epochs()
        self._actor.lr_scheduler.step()
        self._actor.optimizer.zero_grad()
        variance = explained_variance(self._metrics, partial(all_reduce_dict, op=dist.ReduceOp.SUM))
        means = {name: float(np.mean(values)) for name, values in self._metrics.items()}
        training = all_reduce_dict(means, op=dist.ReduceOp.AVG) | variance
        rollout = compute_rollout_metrics(concatenate(self._reports, dim=1))
        return _named("rollout", rollout) | _named("train", training)

    def _repeat_epochs(self) -> None:
        """The update epochs after the first: over the whole batch, shuffled once, as RLinf does."""
        if self._settings.update_epoch == 1:
            return
        samples = concatenate(self._samples)
        self._samples.clear()
        order = torch.randperm(size_of(samples), generator=self._shuffle)
        shuffled = map_tensors(lambda tensor: tensor[order], samples)
        for _ in range(self._settings.update_epoch - 1):
            self._train_samples(shuffled)
            self._stream.finish()

    def _ratio_probe(self) -> RatioProbe:
        # Scoring one sample in a hundred takes a few thousandths of the time of training on all.
        one_in_a_hundred = self._settings.samples_per_batch // self._settings.plan.learner_ranks // 100
        return RatioProbe(
            self._past,
            self._score,
            max_staleness=self._settings.asynchrony.max_staleness,
            interpolates=self._train.proximal == "loglinear",
            size=min(SAMPLES, max(1, one_in_a_hundred)),
        )

    def _score(self, samples: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        (output,) = forward(self._actor, samples, size_of(samples), logprobs=True, values=False)
        stored: Any = output.get("prev_logprobs", samples["prev_logprobs"])
        return self._at_ratio_level(output["logprobs"]), self._at_ratio_level(stored)

    def _probe_samples(self, probe: RatioProbe, rollout: Tree) -> None:
        def flat(name: str) -> torch.Tensor:
            return rollout[name].flatten(0, 1)  # type: ignore[union-attr]

        known = None
        if "proximal_logprobs" in rollout:
            acted = "acted_logprobs" if "acted_logprobs" in rollout else "prev_logprobs"
            known = self._at_ratio_level(flat("proximal_logprobs")), self._at_ratio_level(flat(acted))
        probe.add(samples_of(rollout), self._batch - flat("versions").flatten().long(), known)

    def _at_ratio_level(self, logprobs: torch.Tensor) -> torch.Tensor:
        cfg = self._actor.cfg
        level, action_dim = cfg.algorithm.logprob_type, cfg.actor.model.get("action_dim", 7)
        return at_ratio_level(logprobs.float(), level, action_dim)


def _named(prefix: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}
