"""Trains on pieces of rollouts with veRL's engine, losses, estimators and mini-batch loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from tensordict import NonTensorData, TensorDict
from verl.trainer.config import AlgoConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import ActorConfig

from rlinf_async.core.packing import passes_over
from rlinf_async.core.premise import Premise
from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tensors, Tree, leaf, map_tensors, size_of
from rlinf_async.core.types import Piece
from rlinf_async.hosts.kit.samples import LIVE_FIELD, PROXIMAL_FIELD, LivePasses, couples_rows, skipped
from rlinf_async.hosts.kit.scoring import ScoringTraining
from rlinf_async.hosts.kit.sharded import TrainedShards
from rlinf_async.hosts.verl.advantages import estimate_batch, estimate_pieces, silent_groups, valid_decisions
from rlinf_async.hosts.verl.algorithms import GROUP_ESTIMATORS, VALUE_ESTIMATORS
from rlinf_async.hosts.verl.engine import PolicyEngine, tensor_dict
from rlinf_async.hosts.verl.losses import WHOLE_TOKENS, PolicyLoss, at_level
from rlinf_async.hosts.verl.measures import StepMeasures, of_verl, sum_over_ranks
from rlinf_async.hosts.verl.settings import VerlSettings
from rlinf_async.loops.streaming_learner import Normalize, StreamingLearner
from rlinf_async.observe.meters import BusyMeter, prefixed
from rlinf_async.observe.rollout_measures import REPORTED_FIELDS, of_rollouts
from rlinf_async.observe.spans import SpanLog


class TrainsMiniBatches(Protocol):
    """A learner rank, and the parts of veRL's `TrainingWorker` that train a complete batch."""

    engine: PolicyEngine
    actor: ActorConfig
    """veRL's `actor_rollout_ref.actor`."""
    algorithm: AlgoConfig
    """veRL's section `algorithm`."""
    premise: Premise | None
    spans: SpanLog

    def set_loss_fn(self, loss_fn: object) -> None: ...

    def train_mini_batch(self, data: TensorDict) -> TensorDict: ...


def engine_learner(worker: TrainsMiniBatches, settings: VerlSettings, busy: BusyMeter) -> StreamingLearner:
    """Return the learner of one rank, which trains with the parts of `worker`."""
    return StreamingLearner(
        EngineTraining(worker, settings),
        settings,
        parameters=TrainedShards(worker.engine.module),
        busy=busy,
        rank=worker.engine.get_data_parallel_rank(),
        probe_size=settings.probe_size,
    )


class EngineTraining(ScoringTraining):
    """Trains a `PolicyEngine`; implements `loops.streaming_learner.Training`.

    Without streaming, veRL's own loop over mini-batches and epochs trains the complete batch, so that results
    equal veRL's bit for bit. Streamed micro-batches are separate calls of the engine, and veRL would divide
    the loss of each by its valid tokens: here their gradients are sums instead, divided when the step is
    complete.
    """

    def __init__(self, worker: TrainsMiniBatches, settings: VerlSettings) -> None:
        critic, model = settings.estimator in VALUE_ESTIMATORS, worker.engine.model_name
        inputs = worker.engine.held_inputs
        super().__init__(worker, settings, inputs=inputs, critic=critic, model=model)
        self._worker = worker
        self._engine = worker.engine
        self._group = worker.engine.get_data_parallel_group()
        self._settings: VerlSettings = settings
        whole = PolicyLoss(actor=worker.actor, settings=settings)
        self._loss = replace(whole, streamed=settings.streams)
        # veRL's own loop divides by the tokens of a mini-batch itself, so it gets the loss without streaming.
        worker.set_loss_fn(whole)
        self._passes: LivePasses | None = None
        if settings.left_out and not couples_rows(worker.engine.module.train()):
            size = settings.micro_batch_size
            self._passes = LivePasses(settings.left_out, size=size, streams=settings.streams, most=self.most)
        self._count = 0.0
        self._silent = 0
        self._measures = StepMeasures()
        self._reports: list[Tensors] = []

    @contextmanager
    def working(self) -> Iterator[None]:
        # Accumulated gradients are kept at the end of the block: the rest of a step may come in the next
        # block.
        with self._engine.train_mode(disable_auto_offload=True, zero_grad_on_exit=False):
            yield

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._inputs.clear()
        self._count = 0.0
        self._silent = 0
        self._measures = StepMeasures()
        self._reports, self._examined = [], {}
        self._engine.optimizer_zero_grad()

    def rollout(self, pieces: Sequence[Piece]) -> Tree:
        rollout = self.joined(pieces)
        if self._critic and "prev_values" not in rollout:
            raise ValueError(
                "algorithm.adv_estimator=gae needs values, and the policy gave none; set "
                "vla.model.add_value_head=true, or another algorithm.adv_estimator"
            )
        # Batch N is trained starting from policy version N, so the difference is the staleness in versions.
        rollout["staleness"] = self._batch - leaf(rollout, "versions")
        if self._passes is not None:
            rollout[LIVE_FIELD] = self.live(rollout)
        self.look_at(rollout)
        return rollout

    def live(self, rollout: Tree) -> torch.Tensor | None:
        """As in the base class, as far as it is known before values are recomputed."""
        if self._passes is None:
            return None
        tensors: Tensors = rollout  # type: ignore[assignment]
        live = valid_decisions(tensors, self._settings)
        if self._settings.left_out.silent and self._settings.estimator in GROUP_ESTIMATORS:
            advantages, _ = estimate_pieces(tensors, self._settings, self._worker.algorithm)
            live = live & (advantages != 0)
        return live

    def passes(self, parts: Iterable[Tree], *, values: bool) -> Iterator[Mapping[str, torch.Tensor]]:
        return self._engine.passes(map(self._inputs.with_inputs, parts), values=values)

    def is_half(self) -> bool:
        return self._engine.is_half

    def estimate(self, rollout: Tree) -> torch.Tensor | None:
        tensors: Tensors = rollout  # type: ignore[assignment]
        advantages, returns = estimate_pieces(tensors, self._settings, self._worker.algorithm)
        return self._complete(tensors, advantages, returns)

    def _complete(self, rollout: Tensors, advantages: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
        rollout["advantages"], rollout["returns"] = advantages, returns
        self._silent += silent_groups(rollout, self._settings)
        rollout["valid"] = valid_decisions(rollout, self._settings)
        return rollout["valid"]

    def samples(self, rollout: Tree, order: torch.Tensor) -> Tree:
        self._reports.append({name: leaf(rollout, name) for name in REPORTED_FIELDS})
        behaviour = self.ratios(rollout, "prev_logprobs")
        columns: Tree = {
            INPUTS_FIELD: leaf(rollout, INPUTS_FIELD).flatten(),
            "old_log_probs": self.ratios(rollout, PROXIMAL_FIELD) if PROXIMAL_FIELD in rollout else behaviour,
        }
        if self._settings.asynchrony.weighting:
            columns["behaviour_log_probs"] = behaviour
            columns["staleness"] = leaf(rollout, "staleness").flatten()
        valid = _spread(rollout["valid"], behaviour)
        # veRL's losses use `response_mask`; its engine counts the tokens of a step by `loss_mask`.
        columns |= {"response_mask": valid, "loss_mask": valid}
        columns["advantages"] = _spread(rollout["advantages"], behaviour)
        if self._critic:
            columns["returns"] = _spread(rollout["returns"], behaviour)
            columns["values"] = _spread(leaf(rollout, "prev_values")[:-1], behaviour)
        return map_tensors(lambda tensor: tensor[order], columns)

    def train_micro_batch(self, samples: Tree, *, steps: bool) -> None:
        with self._worker.spans.span("micro-batch"):
            self._count += self._tokens(leaf(samples, "loss_mask"))
            if self._passes is None:
                self._train_pass(samples)
            else:
                mask, advantages = (leaf(samples, name) for name in ("response_mask", "advantages"))
                self._passes.add(samples, self._passes.live(mask, advantages))
                for one, packed, _ in self._passes.due(is_last=steps):
                    self._train_pass(packed, rows=one.size)
        if steps:
            self._step()

    def _tokens(self, mask: torch.Tensor) -> float:
        return self.summed({"tokens": float(mask.sum())})["tokens"]

    def _train_pass(self, samples: Tree, *, rows: int | None = None) -> None:
        """Make a forward and backward pass over samples; only the first `rows` count (None: all)."""
        data = self.batch_of(samples, micro_batch_size=size_of(samples))
        if rows is not None:
            _mask_behind(data, rows)
        output = self._engine.forward_backward_batch(data, self._loss, forward_only=False)
        self._measures.add(output["metrics"], output["loss"], counts=rows != 0)

    def _packed(self, data: TensorDict) -> TensorDict:
        """Return the samples of an optimizer step that have a gradient, for equally many passes on every
        rank.
        """
        assert self._passes is not None, "samples are only left out with it"
        mask, tokens = data["response_mask"], self._tokens(data["loss_mask"])
        rows = self._passes.live(mask, data["advantages"]).nonzero().flatten()
        self._passes.count(seen=len(mask), trained=len(rows))
        passes = self.most(passes_over(len(rows), self._settings.micro_batch_size))
        size = passes_over(len(rows), passes)
        # veRL cuts equal micro-batches, so the last one is filled up with masked samples.
        padded = torch.cat([rows, rows.new_zeros(passes * size - len(rows))])
        packed: TensorDict = data[padded]
        _mask_behind(packed, len(rows))
        tu.assign_non_tensor(packed, **{"micro_batch_size_per_gpu": size, WHOLE_TOKENS: tokens})
        return packed

    def _step(self) -> None:
        divisor = self._count if self._loss.divides_later else 1.0
        with self._worker.spans.span("optimizer step"):
            # Before the step, which clips the norm: the limit is for means, not for sums.
            self._engine.divide_gradients(divisor)
            norm = self._engine.optimizer_step()
            self._engine.optimizer_zero_grad()
        self._measures.step(divisor=divisor, grad_norm=norm)
        self._count = 0.0

    def batch_of(self, samples: Tree, *, micro_batch_size: int) -> TensorDict:
        """Return samples in the form of veRL's engine, which trains `micro_batch_size` at a time on every
        rank.
        """
        options = {
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": micro_batch_size,
            "global_batch_size": self._settings.global_batch_size,
            "calculate_entropy": self._worker.actor.entropy_coeff != 0.0,
        }
        tensors = tensor_dict(samples)
        for name, value in options.items():
            tensors[name] = NonTensorData(value)
        return tensors

    def train_whole(self, rollout: Tree) -> dict[str, float]:
        """Train a whole batch with veRL's own loop, over all epochs."""
        tensors: Tensors = rollout  # type: ignore[assignment]
        self._complete(tensors, *estimate_batch(tensors, self._settings, self._worker.algorithm, self._group))
        data = self.batch_of(
            self.samples(rollout, _by_trajectory(tensors["rewards"])),
            micro_batch_size=self._settings.micro_batch_size,
        )
        tu.assign_non_tensor(
            data,
            # veRL divides it by the number of ranks.
            mini_batch_size=self._settings.global_batch_size,
            epochs=self._settings.update_epoch,
            seed=self._worker.actor.data_loader_seed,
            dataloader_kwargs={"shuffle": self._worker.actor.shuffle},
        )
        with self._choosing():
            output = self._worker.train_mini_batch(data)
        return self._metrics(of_verl(tu.get(output, "metrics")))

    @contextmanager
    def _choosing(self) -> Iterator[None]:
        """Have veRL's own loop train only samples with a gradient inside the block."""
        self._engine.chosen = self._packed if self._passes is not None else None
        try:
            yield
        finally:
            self._engine.chosen = None

    def note(self, name: str, value: float) -> None:
        self._measures.note(name, value)

    def sums_to_normalize(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the sums over all ranks: veRL normalises over the whole batch."""
        return self.summed(sums)

    def finish(self, normalized: Normalize) -> dict[str, float]:
        for report in self._reports:
            # The report was made when samples were cut, before the mean of the whole batch was known.
            report["advantages"] = normalized(report["advantages"])
        # Once per batch, as veRL's own loop does after the last mini-batch of the last epoch.
        self._measures.note("actor/lr", self._engine.lr_scheduler_step())
        return self._metrics(self._measures.means(self._group))

    def _metrics(self, training: Mapping[str, float]) -> dict[str, float]:
        largest = partial(sum_over_ranks, group=self._group, op=dist.ReduceOp.MAX)
        rollouts = of_rollouts(self._reports, summed=self.summed, largest=largest)
        if self._settings.plan.group_size > 1:
            silent = self.summed({"groups_without_signal": float(self._silent)})
            training = {**training, **silent}
        left_out = {} if self._passes is None else skipped(self.summed(self._passes.pop_counts()))
        return prefixed("rollout", rollouts) | prefixed("train", {**training, **self._examined}) | left_out

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        return sum_over_ranks(sums, self._group)

    def most(self, count: int) -> int:
        return int(sum_over_ranks({"count": float(count)}, self._group, op=dist.ReduceOp.MAX)["count"])

    def at_level(self, logprobs: torch.Tensor) -> torch.Tensor:
        return at_level(logprobs, self._settings)


def _spread(per_decision: Any, like: torch.Tensor) -> torch.Tensor:
    """Expand [T, B] to [T * B, L]: each of a decision's L ratios gets the decision's value."""
    return per_decision.flatten().float()[:, None].expand_as(like)


def _mask_behind(data: TensorDict, rows: int) -> None:
    """Mask all samples after the first `rows`."""
    for name in ("response_mask", "loss_mask"):
        mask = data[name].clone()  # it may share memory with another tensor
        mask[rows:] = 0
        data[name] = mask


def _by_trajectory(rewards: torch.Tensor) -> torch.Tensor:
    """Return an order of samples that keeps the decisions of each trajectory together, in sequence."""
    steps, width = rewards.shape
    return torch.arange(steps * width).view(steps, width).T.flatten()
