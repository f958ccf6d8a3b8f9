"""The learner port over an RLinf actor: pieces in, optimizer steps out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rlinf.algorithms.registry import calculate_adv_and_returns
from rlinf.utils.distributed import all_reduce_dict
from rlinf.utils.metric_utils import compute_rollout_metrics
from rlinf.workers.actor.fsdp_actor_worker import process_nested_dict_for_train

from rlinf_async.core.streaming import AdvantageScale, MicroBatchStream
from rlinf_async.core.tensors import Tree, concatenate, map_tensors, size_of
from rlinf_async.core.tracing import BusyMeter
from rlinf_async.core.types import Piece
from rlinf_async.hosts.rlinf.proximal import recompute
from rlinf_async.hosts.rlinf.settings import LOSSES, Settings

REPORTED = ("rewards", "advantages", "returns", "loss_mask")
"""Fields of a rollout that RLinf's rollout metrics are made of."""


class FSDPLearner:
    """Trains one global batch at a time on one rank.

    Handed a whole batch, it runs RLinf's own training. Handed pieces as they arrive, it processes each
    with RLinf's own functions and cuts micro-batches by count. Off-policy batches are re-anchored: the
    log-probabilities and values of the proximal policy are recomputed before the batch is trained on.
    """

    def __init__(self, actor: Any, settings: Settings, busy: BusyMeter) -> None:
        self._actor = actor
        self._settings = settings
        self._busy = busy
        self._corrects = settings.asynchrony.off_policy and settings.asynchrony.train.correction != "none"
        self._scale = AdvantageScale()
        self._stream = MicroBatchStream(
            micro_batch_size=settings.micro_batch_size, micro_batches_per_step=settings.micro_batches_per_step
        )
        if self._corrects:
            actor.anchor_at_proximal(LOSSES[settings.loss])

    def begin(self, batch: int) -> None:
        self._metrics: dict[str, list[float]] = {}
        self._reports: list[Tree] = []
        self._held: list[Tree] = []
        self._samples: list[Tree] = []
        self._shuffle = torch.Generator().manual_seed(self._settings.seed + self._actor._rank + 1009 * batch)
        self._actor.optimizer.zero_grad()
        self._actor.model.train()

    def accept(self, pieces: Sequence[Piece]) -> None:
        with self._busy.busy():
            if self._settings.streams:
                for piece in pieces:
                    self._stream_piece(piece)
            else:
                ordered = sorted(pieces, key=lambda piece: piece.key)
                self._actor.rollout_batch = self._rollout(ordered)

    def finish(self) -> dict[str, float]:
        with self._busy.busy():
            if self._settings.streams:
                return self._finish_stream()
            rollout = self._actor.compute_advantages_and_returns()
            return _named("rollout", rollout) | _named("train", self._actor.run_training())

    def _rollout(self, pieces: Sequence[Piece]) -> Tree:
        """The pieces side by side, [T, B, ...], masked by RLinf and re-anchored if off-policy."""
        trees = [{name: value for name, value in piece.payload.items() if value != {}} for piece in pieces]
        bootstraps = [tree.pop("bootstrap_inputs", {}) for tree in trees]
        rollout: Tree = self._actor._process_received_rollout_batch(concatenate(trees, dim=1))
        if self._corrects:
            recompute(
                self._actor,
                rollout,
                concatenate(bootstraps),
                micro_batch_size=self._settings.micro_batch_size,
                values=self._settings.advantage == "gae",
            )
        return rollout

    def _stream_piece(self, piece: Piece) -> None:
        rollout = self._rollout([piece])
        rollout.update(self._raw_advantages(rollout))
        if self._settings.advantage == "gae":
            self._scale.observe(rollout["advantages"], rollout.get("loss_mask"))  # type: ignore[arg-type]
            if not self._scale.ready:
                self._held.append(rollout)  # the first batch is normalised by itself, once it is complete
                return
        self._train_rollout(rollout)

    def _raw_advantages(self, rollout: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """RLinf's advantages and returns, not yet normalised over the batch."""
        algorithm = self._actor.cfg.algorithm
        return calculate_adv_and_returns(
            task_type=self._actor.cfg.runner.task_type,
            adv_type=algorithm.adv_type,
            rewards=rollout["rewards"],
            dones=rollout["dones"],
            values=rollout.get("prev_values"),
            gamma=algorithm.get("gamma", 1),
            gae_lambda=algorithm.get("gae_lambda", 1),
            group_size=algorithm.get("group_size", 8),
            reward_type=algorithm.reward_type,
            loss_mask=rollout.get("loss_mask"),
            loss_mask_sum=rollout.get("loss_mask_sum"),
            normalize_advantages=False,
        )

    def _train_rollout(self, rollout: Tree) -> None:
        if self._settings.advantage == "gae":
            rollout["advantages"] = self._scale.apply(rollout["advantages"])  # type: ignore[arg-type]
        self._reports.append({name: rollout.get(name) for name in REPORTED})
        steps, width = rollout["prev_logprobs"].shape[:2]  # type: ignore[union-attr]
        order = torch.randperm(steps * width, generator=self._shuffle)
        samples: Tree = process_nested_dict_for_train(rollout, order)
        self._samples.append(samples)
        self._train_samples(samples)

    def _train_samples(self, samples: Tree) -> None:
        for micro_batch in self._stream.add(samples):
            self._actor.train_micro_batch(micro_batch.samples, self._metrics, is_last=micro_batch.steps)
            if micro_batch.steps:
                self._actor.finish_global_batch(self._metrics)

    def _finish_stream(self) -> dict[str, float]:
        self._scale.close()
        for rollout in self._held:
            self._train_rollout(rollout)
        self._stream.finish()
        self._repeat_epochs()
        self._actor.lr_scheduler.step()
        self._actor.optimizer.zero_grad()
        means = {name: float(np.mean(values)) for name, values in self._metrics.items()}
        training = all_reduce_dict(means, op=dist.ReduceOp.AVG)
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


def _named(prefix: str, metrics: Mapping[str, Any]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in metrics.items()}
