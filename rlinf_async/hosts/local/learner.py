"""The learner: pieces in, optimizer steps out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch

from rlinf_async.core.objectives import importance_weight, loglinear, ppo_loss, value_loss
from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.ratios import RatioProbe, averages
from rlinf_async.core.streaming import AdvantageScale, MicroBatchStream
from rlinf_async.core.tensors import Tree, concatenate, size_of
from rlinf_async.core.tracing import BusyMeter
from rlinf_async.core.types import Piece
from rlinf_async.hosts.local.device import DeviceQueue, Watch, unwatched
from rlinf_async.hosts.local.estimates import Tensors, anchored, estimated
from rlinf_async.hosts.local.policy import ActorCritic
from rlinf_async.hosts.local.settings import LocalSettings


class LocalLearner:
    """Trains one global batch at a time; fills `loops.ports.Learner`.

    The loss of an optimizer step is a sum over its samples divided by their number. That number is known
    only when the step is complete, so gradients of sums are accumulated and divided then: how samples
    are cut into micro-batches, and when they arrive, changes rounding and nothing else.
    """

    def __init__(
        self, *, settings: LocalSettings, model: ActorCritic, busy: BusyMeter, watch: Watch = unwatched
    ) -> None:
        self.model = model
        self._queue = DeviceQueue(model, "learner", watch=watch)
        self._settings = settings
        self._busy = busy
        self._scale = AdvantageScale()
        self._stream = MicroBatchStream(
            micro_batch_size=settings.samples_per_micro_batch,
            micro_batches_per_step=settings.micro_batches_per_step,
        )
        self._optimizer = _optimizer(model, lr=settings.lr, value_lr=settings.value_lr)
        sampled = settings.asynchrony.max_staleness if settings.asynchrony.measures_ratios else 0
        self._past = PastWeights(lambda: list(self.model.parameters()), keep=sampled + 1)
        self._probe = self._ratio_probe() if settings.asynchrony.measures_ratios else None

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self._held: list[Tensors] = []
        self._samples: list[Tensors] = []
        self._count = 0.0
        self._trained = self._streamed = 0
        self._shuffle = torch.Generator().manual_seed(self._settings.seed + 1009 * batch)
        if (self._probe is not None or self._anchors_in_the_past) and self._past.present != batch:
            with self._queue.block():
                self._past.remember(batch)
        if self._probe is not None:
            self._probe.begin(batch)

    def accept(self, pieces: Sequence[Piece]) -> None:
        with self._busy.busy(), self._queue.block():
            # Whatever was trained until now was trained before these pieces, perhaps the last, had come.
            self._streamed = self._trained
            for piece in sorted(pieces, key=lambda piece: piece.key):
                self._accept(piece)

    def finish(self) -> dict[str, float]:
        with self._busy.busy(), self._queue.block():
            self._scale.close()
            if self._held:
                self._train_rollout(_joined(self._held, dim=1))
            self._stream.finish()
            self._repeat_epochs()
            self._note("train/streamed", self._streamed / self._settings.samples_per_batch)
            metrics = {name: sum(values) / len(values) for name, values in self._metrics.items()}
            ratios = self._measured_ratios()
            return metrics | {f"train/{name}": value for name, value in ratios.items()}

    def _measured_ratios(self) -> dict[str, float]:
        if self._probe is None:
            return {}
        return averages(self._probe.finish())

    def _accept(self, piece: Piece) -> None:
        rollout = estimated(self._anchored(self._queue.put(piece.payload)), self._settings)
        self._note_episodes(rollout)
        if self._settings.normalizes:
            self._scale.observe(rollout["advantages"], rollout["valid"])
        rollout["staleness"] = self._batch - rollout["versions"]
        # Streamed advantages are normalised by the batch before; the first batch waits for itself.
        if self._settings.streams and (self._scale.ready or not self._settings.normalizes):
            self._train_rollout(rollout)
        else:
            self._held.append(rollout)

    @property
    def _anchors_in_the_past(self) -> bool:
        """Whether pieces may arrive after the weights that anchor them have changed."""
        return self._settings.asynchrony.recomputes and self._settings.steps_while_streaming

    def _anchored(self, payload: Tensors) -> Tensors:
        past = self._past.at(self._batch) if self._anchors_in_the_past else nullcontext()
        with past, self._queue.watched():
            return anchored(payload, self.model, self._settings)

    def _train_rollout(self, rollout: Tensors) -> None:
        advantages = rollout["advantages"]
        if self._settings.normalizes:
            self._note("train/advantage_scale", self._scale.divisor)
            advantages = self._scale.apply(advantages)
        samples = {
            "states": rollout["states"][:-1],
            "actions": rollout["actions"],
            "behaviour": rollout["logprobs"],
            "proximal": rollout["proximal"],
            "staleness": rollout["staleness"],
            "old_values": rollout["values"][:-1],
            "advantages": advantages,
            **{name: rollout[name] for name in ("returns", "valid", "share", "counted")},
        }
        flat = self._shuffled({name: tensor.flatten(0, 1) for name, tensor in samples.items()})
        if self._probe is not None:
            inputs: Tree = {name: flat[name] for name in ("states", "actions", "behaviour")}
            known = (flat["proximal"].cpu(), flat["behaviour"].cpu())
            recomputed = self._settings.asynchrony.recomputes
            self._probe.add(inputs, flat["staleness"].cpu(), known if recomputed else None)
        self._samples.append(flat)
        self._trained += size_of(flat)  # type: ignore[arg-type]
        self._train_samples(flat)

    def _repeat_epochs(self) -> None:
        """The update epochs after the first, over the whole batch, shuffled once, as RLinf does."""
        if self._settings.update_epoch == 1:
            return
        arrived = self._samples
        samples = arrived[0] if len(arrived) == 1 else self._shuffled(_joined(arrived, dim=0))
        for _ in range(self._settings.update_epoch - 1):
            self._train_samples(samples)
            self._stream.finish()

    def _shuffled(self, samples: Tensors) -> Tensors:
        order = torch.randperm(size_of(samples), generator=self._shuffle)  # type: ignore[arg-type]
        order = order.to(self._queue.device)
        return {name: tensor[order] for name, tensor in samples.items()}

    def _train_samples(self, samples: Tensors) -> None:
        for micro_batch in self._stream.add(samples):  # type: ignore[arg-type]
            with self._queue.watched():
                self._accumulate(micro_batch.samples)  # type: ignore[arg-type]
                if micro_batch.steps:
                    self._step()

    def _accumulate(self, samples: Tensors) -> None:
        settings, share = self._settings, samples["share"]
        logprobs, values = self.model.evaluate(samples["states"], samples["actions"])
        anchor = self._anchor(samples, logprobs)
        weights = importance_weight(
            anchor,
            samples["behaviour"],
            correction=settings.asynchrony.correction,
            max_weight=settings.asynchrony.train.weight_bound,
        )
        policy = ppo_loss(
            logprobs, anchor, samples["advantages"] * weights, clip_low=settings.clip, clip_high=settings.clip
        )
        loss = (policy * share).sum()
        if settings.algorithm == "ppo":
            critic = value_loss(values, samples["old_values"], samples["returns"], clip=settings.value_clip)
            loss = loss + (critic * share).sum()
        torch.autograd.backward(loss)
        count = samples["counted"].sum()
        self._count += float(count)
        self._note("train/loss", loss.detach() / count.clamp(min=1))
        self._note("train/approx_kl", _mean(anchor - logprobs.detach(), samples["valid"]))
        self._note("train/behaviour_weight", _mean(weights, samples["valid"]))

    def _anchor(self, samples: Tensors, logprobs: torch.Tensor) -> torch.Tensor:
        """`log pi_prox`, around which the ratio is clipped."""
        asynchrony = self._settings.asynchrony
        if asynchrony.correction != "none" and asynchrony.train.proximal == "loglinear":
            return loglinear(logprobs.detach(), samples["behaviour"], samples["staleness"])
        return samples["proximal"]

    def _step(self) -> None:
        parameters = list(self.model.parameters())
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(max(1.0, self._count))
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._settings.clip_grad)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._past.changed()
        self._count = 0.0
        self._note("train/grad_norm", norm)

    def _note_episodes(self, rollout: Tensors) -> None:
        self._note("env/success_once", rollout["ended"].any(dim=0).float().mean())
        self._note("env/return", rollout["rewards"].sum(dim=0).mean())

    def _ratio_probe(self) -> RatioProbe:
        def score(inputs: Tree) -> tuple[torch.Tensor, torch.Tensor]:
            scored = self.model.logprobs(inputs["states"], inputs["actions"])  # type: ignore[arg-type]
            return scored, inputs["behaviour"]  # type: ignore[return-value]

        asynchrony = self._settings.asynchrony
        return RatioProbe(
            self._past,
            score,
            max_staleness=asynchrony.max_staleness,
            interpolates=asynchrony.train.proximal == "loglinear",
        )

    def _note(self, name: str, value: torch.Tensor | float) -> None:
        self._metrics[name].append(float(value))


def _optimizer(model: ActorCritic, *, lr: float, value_lr: float) -> torch.optim.Optimizer:
    critic = list(model.value_head.parameters())
    actor = [parameter for name, parameter in model.named_parameters() if not name.startswith("value_head.")]
    groups = [{"params": actor, "lr": lr}, {"params": critic, "lr": value_lr}]
    optimizer = torch.optim.Adam(groups, eps=1e-5)
    # RLinf lets its optimizer take an empty step when it is built, which Adam's bias correction counts.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _joined(parts: Sequence[Mapping[str, torch.Tensor]], dim: int) -> Tensors:
    return concatenate(parts, dim)  # type: ignore[arg-type, return-value]


def _mean(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    return (values * valid).sum() / valid.sum().clamp(min=1)
