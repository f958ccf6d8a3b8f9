"""Training by an RLinf actor: its forward, backward, loss and optimizer step, from pieces of rollouts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rlinf_async.core.premise import Premise
from rlinf_async.core.scored import WHOLE
from rlinf_async.core.tensors import Tree, concatenate, leaf, map_tensors
from rlinf_async.core.types import Piece
from rlinf_async.hosts.kit.ratios import at_ratio_level, scored_in
from rlinf_async.hosts.kit.scoring import PROXIMAL, Forward, anchor, compare, flat, recompute, samples_of
from rlinf_async.hosts.rlinf.advantages import GroupAdvantages, estimate
from rlinf_async.hosts.rlinf.borrowed import all_reduce_dict, compute_rollout_metrics
from rlinf_async.hosts.rlinf.compat import explained_variance
from rlinf_async.hosts.rlinf.losses import ratio_level
from rlinf_async.hosts.rlinf.premise import judge
from rlinf_async.hosts.rlinf.proximal import forward, model_name
from rlinf_async.hosts.rlinf.settings import ON_POLICY_LOSSES, RLinfSettings
from rlinf_async.hosts.rlinf.shards import TrainedShards
from rlinf_async.loops.streaming_learner import Normalize, Pair, StreamingLearner
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.ray_runtime.reporting import prefixed

LOG = logging.getLogger(__name__)

REPORTED_FIELDS = ("rewards", "advantages", "returns", "loss_mask")
"""Fields of a rollout from which RLinf's rollout metrics are made."""


def fsdp_learner(actor: Any, settings: RLinfSettings, busy: BusyMeter) -> StreamingLearner:
    """The learner of one rank, which from now on is trained by `actor`."""
    if weighting := settings.asynchrony.weighting:
        actor.correct(ON_POLICY_LOSSES[settings.loss], weighting)
    return StreamingLearner(
        FSDPTraining(actor, settings),
        settings,
        parameters=TrainedShards(actor),
        busy=busy,
        rank=actor._rank,
        probe_size=settings.probe_size,
    )


class FSDPTraining:
    """Trains an RLinf actor; fills `loops.streaming_learner.Training`.

    A complete batch is trained by RLinf's own training, so that what does not stream is RLinf's to the last
    bit. Before the first batch is trained, the run's premise is examined on it: at the weights that acted,
    the learner scores actions as inference did.
    """

    def __init__(self, actor: Any, settings: RLinfSettings) -> None:
        self._actor = actor
        self._settings = settings
        self._premise = actor.premise if settings.asynchrony.advanced.measures else Premise()
        self._critic = settings.advantage == "gae"
        self.scored = WHOLE
        self._groups = GroupAdvantages().register() if settings.advantage == "grpo" else None

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._metrics: dict[str, list[float]] = {}
        self._examined: dict[str, float] = {}
        self._reports: list[Tree] = []
        self._actor.model.zero_grad()
        self._actor.model.train()

    def rollout(self, pieces: Sequence[Piece]) -> Tree:
        collected = concatenate([piece.payload for piece in pieces], dim=1)
        # Taken out, as their leading dimension is not that of the rollout.
        bootstrap = collected.pop("bootstrap_inputs", None)
        self.scored = scored_in(collected["forward_inputs"])
        rollout: Tree = self._actor._process_received_rollout_batch(collected)
        if self._premise is None:
            self._premise = self._actor.premise = self._examine(rollout)
        if self._settings.asynchrony.recomputes:
            rollout["bootstrap_inputs"] = bootstrap
        return rollout

    def _forward(self, *, values: bool) -> Forward:
        return partial(forward, self._actor, values=values)

    def _examine(self, rollout: Tree) -> Premise:
        """Compare scores before anything is trained: the weights are those that the newest samples were
        drawn with.
        """
        values, most = self._critic, self._settings.micro_batch_size
        sums = compare(rollout, self._batch, self._forward(values=values), most=most, values=values)
        premise = judge(self.summed(sums), self._actor.cfg, LOG.warning)
        self._examined = premise.metrics
        return premise

    def anchor(self, rollout: Tree, scores: Tree | None = None) -> None:
        assert self._premise is not None
        beyond = rollout.pop("bootstrap_inputs")
        values = self._critic and not self._premise.keeps_values
        how: Any = {"values": values, "model": model_name(self._actor.cfg)}
        if scores is None:
            size = self._settings.micro_batch_size
            recompute(rollout, flat(beyond), self._forward(values=values), micro_batch_size=size, **how)
        else:
            scored: Any = flat(scores)
            anchor(rollout, [scored], **how)

    def estimate(self, rollout: Tree) -> torch.Tensor | None:
        rollout.update(estimate(self._actor.cfg, rollout, normalize=False))
        return rollout.get("loss_mask")  # type: ignore[return-value]

    def samples(self, rollout: Tree, order: torch.Tensor) -> Tree:
        self._reports.append({name: rollout.get(name) for name in REPORTED_FIELDS})
        decisions = len(leaf(rollout, "prev_logprobs"))  # fields of observations have one row more
        return map_tensors(lambda tensor: tensor[:decisions].flatten(0, 1)[order], rollout)

    def train_micro_batch(self, samples: Tree, *, steps: bool) -> None:
        self._actor.train_micro_batch(samples, self._metrics, is_last=steps)
        if steps:
            self._step()

    def _step(self) -> None:
        """An optimizer step, reported as RLinf reports it."""
        self._actor.torch_platform.empty_cache()
        grad_norm, rates = self._actor.optimizer_step()
        self._actor.model.zero_grad()
        self.note("actor/grad_norm", float(grad_norm))
        for name, rate in zip(("actor/lr", "critic/lr"), rates, strict=False):
            self.note(name, rate)

    def train_whole(self, rollout: Tree) -> dict[str, float]:
        """RLinf's own training."""
        actor = self._actor
        actor.rollout_batch = rollout
        reported = actor.compute_advantages_and_returns()
        return self._named(reported, actor.run_training())

    def note(self, name: str, value: float) -> None:
        self._metrics.setdefault(name, []).append(value)

    def sums_to_normalize(self, sums: dict[str, float]) -> dict[str, float]:
        """Those of this rank: RLinf normalises the advantages of each by themselves."""
        return sums

    def finish(self, normalized: Normalize) -> dict[str, float]:
        self._actor.lr_scheduler.step()
        self._actor.model.zero_grad()
        variance = explained_variance(self._metrics, self.summed)
        means = {name: float(np.mean(values)) for name, values in self._metrics.items()}
        trained = all_reduce_dict(means, op=dist.ReduceOp.AVG) | variance
        report = concatenate(self._reports, dim=1)
        report["advantages"] = normalized(leaf(report, "advantages"))
        return self._named(compute_rollout_metrics(report), trained)

    def _named(self, rollout: Mapping[str, Any], train: Mapping[str, Any]) -> dict[str, float]:
        return prefixed("rollout", rollout) | prefixed("train", {**train, **self._examined, **self._silent()})

    def _silent(self) -> dict[str, float]:
        """Groups of the batch, on all ranks, whose members scored the same."""
        if self._groups is None:
            return {}
        return self.summed({"groups_without_signal": float(self._groups.pop_silent())})

    def probe_samples(self, rollout: Tree) -> tuple[Tree, torch.Tensor, Pair | None]:
        def ratios(name: str) -> torch.Tensor:
            return self._at_ratio_level(leaf(rollout, name).flatten(0, 1))

        versions = leaf(rollout, "versions").flatten().long()
        pair = None
        if PROXIMAL in rollout:
            acted = "acted_logprobs" if "acted_logprobs" in rollout else "prev_logprobs"
            pair = ratios(PROXIMAL), ratios(acted)
        return samples_of(rollout), self._batch - versions, pair

    def score(self, inputs: Tree) -> Pair:
        (output,) = self._forward(values=False)([inputs])
        stored: Any = output.get("prev_logprobs", inputs["prev_logprobs"])
        return self._at_ratio_level(output["logprobs"]), self._at_ratio_level(stored)

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        total: dict[str, float] = all_reduce_dict(sums, op=dist.ReduceOp.SUM)
        return total

    def _at_ratio_level(self, logprobs: torch.Tensor) -> torch.Tensor:
        algorithm, model = self._actor.cfg.algorithm, self._actor.cfg.actor.model
        return at_ratio_level(logprobs.float(), ratio_level(algorithm), model.get("action_dim", 7))
