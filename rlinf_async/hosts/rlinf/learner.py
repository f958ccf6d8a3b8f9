"""An RLinf actor as a learner: trains it on pieces of rollouts, with its own forward and backward passes,
loss and optimizer step, and copies its weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from omegaconf import OmegaConf

from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.precision import any_in_half, precision_of
from rlinf_async.core.tensors import Tree, concatenate, leaf, map_tensors
from rlinf_async.core.types import Piece
from rlinf_async.hosts.kit.ratios import at_ratio_level
from rlinf_async.hosts.kit.samples import LIVE_FIELD, skipped
from rlinf_async.hosts.kit.scoring import ScoringTraining
from rlinf_async.hosts.kit.sharded import ShardedWeights
from rlinf_async.hosts.rlinf.advantages import GroupAdvantages, estimate, explained_variance
from rlinf_async.hosts.rlinf.borrowed import all_reduce_dict, compute_rollout_metrics
from rlinf_async.hosts.rlinf.corrected_loss import ratio_level
from rlinf_async.hosts.rlinf.run_settings import RLinfSettings
from rlinf_async.hosts.rlinf.scoring import score
from rlinf_async.loops.streaming_learner import Normalize
from rlinf_async.observe.meters import prefixed
from rlinf_async.ray_runtime.publication.weights import Types

REPORTED_FIELDS = ("rewards", "advantages", "returns", "loss_mask")
"""Fields of a rollout that RLinf's rollout metrics need."""


class FSDPTraining(ScoringTraining):
    """Trains an RLinf actor; implements `loops.streaming_learner.Training`.

    Without streaming, RLinf's own method trains the complete batch, so that results equal RLinf's bit for
    bit.
    """

    def __init__(self, actor: Any, settings: RLinfSettings) -> None:
        model = f"actor.model.model_type={actor.cfg.actor.model.model_type!r}"
        super().__init__(actor, settings, inputs=actor.held_inputs, critic=settings.has_critic, model=model)
        self._actor = actor
        self._groups = GroupAdvantages().register() if settings.compares_groups else None

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._inputs.clear()
        self._metrics: dict[str, list[float]] = {}
        self._examined = {}
        self._reports: list[Tree] = []
        self._actor.model.zero_grad()
        # Scoring passes that end early leave the model in eval mode; see `forward`.
        self._actor.model.train()

    def rollout(self, pieces: Sequence[Piece]) -> Tree:
        fields = self.joined(pieces)
        # Removed, as their leading dimension differs from the rollout's.
        bootstrap = fields.pop("bootstrap_inputs", None)
        rollout: Tree = self._masked(fields)
        if (live := self._live(rollout)) is not None:
            rollout[LIVE_FIELD] = live
        self.look_at(rollout)
        if self._settings.asynchrony.recomputes:
            rollout["bootstrap_inputs"] = bootstrap
        return rollout

    def _masked(self, fields: Tree) -> Tree:
        """Return the joined fields of pieces, with RLinf's masks."""
        return self._actor._process_received_rollout_batch(fields)

    def live(self, rollout: Tree) -> torch.Tensor | None:
        return self._live(self._masked(rollout))

    def _live(self, rollout: Tree) -> torch.Tensor | None:
        """Return [T, B] bool, for a rollout with masks: the sample has a gradient; None for all."""
        leaves = self._actor.live.leaves if self._actor.live is not None else LeftOut()
        if not leaves:
            return None
        advantages = None
        if leaves.silent:
            assert self._groups is not None, "groups are compared"
            with self._groups.uncounted():
                advantages = estimate(self._actor.cfg, rollout, normalize=False)["advantages"].flatten(0, 1)
        mask: Any = rollout.get("loss_mask")
        live = leaves.live(None if mask is None else mask.flatten(0, 1), advantages)
        return None if live is None else live.unflatten(0, leaf(rollout, "prev_logprobs").shape[:2])

    def most(self, count: int) -> int:
        return self._actor.most(count)

    def passes(self, parts: Iterable[Tree], *, values: bool) -> Iterator[Mapping[str, torch.Tensor]]:
        return forward(self._actor, map(self._inputs.with_inputs, parts), values=values)

    def is_half(self) -> bool:
        return is_half(self._actor.cfg.actor)

    def estimate(self, rollout: Tree) -> torch.Tensor | None:
        # `normalize=False`: RLinf would normalise over this part of the batch; the streaming learner
        # normalises by the statistics of the batch.
        rollout.update(estimate(self._actor.cfg, rollout, normalize=False))
        return rollout.get("loss_mask")  # type: ignore[return-value]

    def samples(self, rollout: Tree, order: torch.Tensor) -> Tree:
        self._reports.append({name: rollout.get(name) for name in REPORTED_FIELDS})
        decisions = len(leaf(rollout, "prev_logprobs"))  # some fields have one row more
        return map_tensors(lambda tensor: tensor[:decisions].flatten(0, 1)[order], rollout)

    def train_micro_batch(self, samples: Tree, *, steps: bool) -> None:
        self._actor.train_micro_batch(samples, self._metrics, is_last=steps)
        if steps:
            self._step()

    def _step(self) -> None:
        """Make an optimizer step, with RLinf's metrics."""
        # In the order of RLinf's `run_training`.
        self._actor.torch_platform.empty_cache()
        grad_norm, rates = self._actor.optimizer_step()
        self._actor.model.zero_grad()
        self.note("actor/grad_norm", float(grad_norm))
        # RLinf returns a rate for each parameter group, and reports the first two under these names.
        for name, rate in zip(("actor/lr", "critic/lr"), rates, strict=False):
            self.note(name, rate)

    def train_whole(self, rollout: Tree) -> dict[str, float]:
        """Train the whole batch with RLinf's own method."""
        actor = self._actor
        actor.rollout_batch = rollout
        rollout_metrics = actor.compute_advantages_and_returns()
        return self._with_prefixes(rollout_metrics, actor.run_training())

    def note(self, name: str, value: float) -> None:
        self._metrics.setdefault(name, []).append(value)

    def sums_to_normalize(self, sums: dict[str, float]) -> dict[str, float]:
        """Return the sums of this rank alone: RLinf normalises advantages per rank."""
        return sums

    def finish(self, normalized: Normalize) -> dict[str, float]:
        # Once per batch, for any number of optimizer steps, as in RLinf's `run_training`.
        self._actor.lr_scheduler.step()
        self._actor.model.zero_grad()
        # Before the means, as it removes its sums from the metrics. All ranks have the same loss, so that
        # either all have sums to add or none.
        variance = explained_variance(self._metrics, self.summed)
        means = {name: float(np.mean(values)) for name, values in self._metrics.items()}
        train_metrics = all_reduce_dict(means, op=dist.ReduceOp.AVG) | variance
        report = concatenate(self._reports, dim=1)
        report["advantages"] = normalized(leaf(report, "advantages"))
        return self._with_prefixes(compute_rollout_metrics(report), train_metrics)

    def _with_prefixes(self, rollout: Mapping[str, Any], train: Mapping[str, Any]) -> dict[str, float]:
        training = prefixed("train", {**train, **self._examined, **self._silent()})
        return prefixed("rollout", rollout) | training | self._skipped()

    def _skipped(self) -> dict[str, float]:
        """Return the share of samples, over all ranks and epochs, that training skipped."""
        if self._actor.live is None:
            return {}
        return skipped(self.summed(self._actor.live.pop_counts()))

    def _silent(self) -> dict[str, float]:
        """Return the number of groups in the batch, over all ranks, with equal scores of all members."""
        if self._groups is None:
            return {}
        return self.summed({"groups_without_signal": float(self._groups.pop_silent())})

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        return all_reduce_dict(sums, op=dist.ReduceOp.SUM)

    def at_level(self, logprobs: torch.Tensor) -> torch.Tensor:
        algorithm, model = self._actor.cfg.algorithm, self._actor.cfg.actor.model
        # 7 is the default of RLinf's `train_micro_batch`.
        return at_ratio_level(logprobs, ratio_level(algorithm), model.get("action_dim", 7))


@torch.no_grad()
def forward(actor: Any, parts: Iterable[Tree], *, values: bool) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the scores of each of `parts`; sharded models need equally many parts on every rank."""
    # Eval mode, without dropout, as in RLinf's `compute_proximal_logprobs` and in inference.
    actor.model.eval()
    for chunk in parts:
        on_device: Any = map_tensors(lambda tensor: tensor.to(actor.device), chunk)
        with actor.amp_context:
            # The consumer's computations on the scores run within this block, until it requests the next
            # ones.
            yield score(actor.cfg, actor.model, on_device, values=values)
    # Reached only if the consumer exhausts the generator; else the model stays in eval mode.
    actor.model.train()


def is_half(section: Any) -> bool:
    """Return True if a part of the forward pass may be in 16 bits. Without a precision the model decides; pi0
    mixes.
    """
    fsdp, precision = section.get("fsdp_config", {}), section.model.get("precision")
    casts = [precision, fsdp.get("mixed_precision", {}).get("param_dtype")]
    if fsdp.get("amp_autocast", {}).get("enabled", False):
        casts.append(fsdp.amp_autocast.precision)
    return precision is None or any_in_half(casts)


TYPES_OF_PRECISION = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Snapshot(ShardedWeights):
    """Copies the weights of an RLinf actor.

    The sent tensors, and the receiver's weights in the end, are the same as with RLinf's own weight syncers
    of any `weight_syncer.type`.
    """

    def __init__(self, actor: Any) -> None:
        # Only rank 0 sends, as in RLinf (`_is_weight_sender`).
        super().__init__(actor.model, sends=actor._rank == 0)
        self._actor = actor

    def state(self) -> Mapping[str, torch.Tensor]:
        return self._actor.get_rollout_state_dict()

    def changing(self, state: Mapping[str, torch.Tensor]) -> Collection[str]:
        return set(self._actor.param_names_need_sync)

    def types_to_send(self, names: Collection[str]) -> Types:
        """Return the types as in RLinf: that of its bucket syncer, if one is configured, else the
        receiver's.
        """
        dtype = OmegaConf.select(self._actor.cfg, "weight_syncer.bucket.bucket_dtype")
        # Only RLinf's bucket syncer reads the key (`weight_syncer/base.py`).
        if dtype is None or OmegaConf.select(self._actor.cfg, "weight_syncer.type") != "bucket":
            return self.types
        trained = set(self._actor.param_names_need_sync).intersection(names)
        return {**self.types, **dict.fromkeys(trained, TYPES_OF_PRECISION[precision_of(str(dtype).lower())])}
