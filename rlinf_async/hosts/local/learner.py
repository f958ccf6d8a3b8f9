"""The learner: pieces in, optimizer steps out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from rlinf_async.core.objectives import (
    behaviour_weight,
    decouple,
    gae,
    group_relative,
    ppo_loss,
    valid_steps,
    value_loss,
)
from rlinf_async.core.streaming import AdvantageScale, MicroBatchStream
from rlinf_async.core.tensors import concatenate, size_of
from rlinf_async.core.tracing import BusyMeter
from rlinf_async.core.types import Piece
from rlinf_async.hosts.local.policy import GaussianPolicy
from rlinf_async.hosts.local.settings import LocalSettings

Tensors = dict[str, torch.Tensor]


class LocalLearner:
    """Trains one global batch at a time; fills `loops.ports.Learner`.

    The loss of an optimizer step is the sum over its valid samples divided by their number. That number
    is known only when the step is complete, so gradients of sums are accumulated and divided then: how
    samples are cut into micro-batches, and when they arrive, changes rounding and nothing else.
    """

    def __init__(self, *, settings: LocalSettings, model: GaussianPolicy, busy: BusyMeter) -> None:
        self.model = model
        self._settings = settings
        self._busy = busy
        self._scale = AdvantageScale()
        self._stream = MicroBatchStream(
            micro_batch_size=settings.samples_per_micro_batch,
            micro_batches_per_step=settings.micro_batches_per_step,
        )
        self._optimizer = _optimizer(model, lr=settings.lr, value_lr=settings.value_lr)

    def begin(self, batch: int) -> None:
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self._held: list[Tensors] = []
        self._samples: list[Tensors] = []
        self._valid = 0
        self._shuffle = torch.Generator().manual_seed(self._settings.seed + 1009 * batch)

    def accept(self, pieces: Sequence[Piece]) -> None:
        with self._busy.busy():
            for piece in sorted(pieces, key=lambda piece: piece.key):
                self._accept(piece)

    def finish(self) -> dict[str, float]:
        with self._busy.busy():
            self._scale.close()
            if self._held:
                self._train_rollout(_joined(self._held, dim=1))
            self._stream.finish()
            self._repeat_epochs()
            return {name: sum(values) / len(values) for name, values in self._metrics.items()}

    def _accept(self, piece: Piece) -> None:
        rollout = self._estimate(self._anchored(piece.payload))
        self._note_episodes(rollout)
        if self._settings.normalizes:
            self._scale.observe(rollout["advantages"], rollout["valid"])
        # Streamed advantages are normalised by the batch before; the first batch waits for itself.
        if self._settings.streams and (self._scale.ready or not self._settings.normalizes):
            self._train_rollout(rollout)
        else:
            self._held.append(rollout)

    @torch.no_grad()
    def _anchored(self, payload: Tensors) -> Tensors:
        """The rollout with `proximal` log-probabilities, and `values` of the same policy.

        Off-policy both are computed anew, for all T + 1 observations; that is the policy from which the
        update starts. On-policy it is the policy that acted.
        """
        rollout = {**payload, "proximal": payload["logprobs"]}
        if self._settings.corrects:
            rollout["proximal"] = self.model.logprobs(payload["states"][:-1], payload["actions"])
            rollout["values"] = self.model.values(payload["states"])
        return rollout

    def _estimate(self, rollout: Tensors) -> Tensors:
        """Adds `valid`, `returns` and `advantages`, the latter not yet normalised over the batch."""
        settings, rewards, valid = self._settings, rollout["rewards"], valid_steps(rollout["ended"])
        if settings.algorithm == "ppo":
            advantages, returns = gae(
                rewards, rollout["values"], rollout["ended"], gamma=settings.gamma, lam=settings.lam
            )
        else:
            relative = group_relative((rewards * valid).sum(dim=0), settings.group_size)
            advantages, returns = relative * valid, torch.zeros_like(rewards)
        return {**rollout, "valid": valid, "advantages": advantages, "returns": returns}

    def _train_rollout(self, rollout: Tensors) -> None:
        advantages = rollout["advantages"]
        if self._settings.normalizes:
            advantages = self._scale.apply(advantages)
        samples = {
            "states": rollout["states"][:-1],
            "actions": rollout["actions"],
            "old_logprobs": rollout["proximal"],
            "old_values": rollout["values"][:-1],
            "advantages": decouple(advantages, rollout["proximal"], rollout["logprobs"]),
            "returns": rollout["returns"],
            "valid": rollout["valid"],
        }
        flat = {name: tensor.flatten(0, 1) for name, tensor in samples.items()}
        self._samples.append(flat)
        self._train_samples(self._shuffled(flat))

    def _repeat_epochs(self) -> None:
        """The update epochs after the first, over the whole batch."""
        for _ in range(self._settings.update_epoch - 1):
            self._train_samples(self._shuffled(_joined(self._samples, dim=0)))
            self._stream.finish()

    def _shuffled(self, samples: Tensors) -> Tensors:
        order = torch.randperm(size_of(samples), generator=self._shuffle)  # type: ignore[arg-type]
        return {name: tensor[order] for name, tensor in samples.items()}

    def _train_samples(self, samples: Tensors) -> None:
        for micro_batch in self._stream.add(samples):  # type: ignore[arg-type]
            self._accumulate(micro_batch.samples)  # type: ignore[arg-type]
            if micro_batch.steps:
                self._step()

    def _accumulate(self, samples: Tensors) -> None:
        settings, valid = self._settings, samples["valid"]
        logprobs = self.model.logprobs(samples["states"], samples["actions"])
        policy = ppo_loss(
            logprobs,
            samples["old_logprobs"],
            samples["advantages"],
            clip_low=settings.clip,
            clip_high=settings.clip,
        )
        loss = (policy * valid).sum()
        if settings.algorithm == "ppo":
            values = self.model.values(samples["states"])
            critic = value_loss(values, samples["old_values"], samples["returns"], clip=settings.value_clip)
            loss = loss + (critic * valid).sum()
        torch.autograd.backward(loss)
        self._valid += int(valid.sum())
        self._note("train/loss", loss.detach() / valid.sum().clamp(min=1))
        self._note("train/approx_kl", _mean(samples["old_logprobs"] - logprobs.detach(), valid))

    def _step(self) -> None:
        parameters = list(self.model.parameters())
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.div_(max(1, self._valid))
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._settings.clip_grad)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._valid = 0
        self._note("train/grad_norm", norm)

    def _note_episodes(self, rollout: Tensors) -> None:
        weights = behaviour_weight(rollout["proximal"], rollout["logprobs"])
        self._note("env/success_once", rollout["ended"].any(dim=0).float().mean())
        self._note("env/return", rollout["rewards"].sum(dim=0).mean())
        self._note("train/behaviour_weight", _mean(weights, rollout["valid"]))

    def _note(self, name: str, value: torch.Tensor) -> None:
        self._metrics[name].append(float(value))


def _optimizer(model: GaussianPolicy, *, lr: float, value_lr: float) -> torch.optim.Optimizer:
    critic = list(model.value_head.parameters())
    actor = [parameter for name, parameter in model.named_parameters() if not name.startswith("value_head.")]
    return torch.optim.Adam([{"params": actor, "lr": lr}, {"params": critic, "lr": value_lr}], eps=1e-5)


def _joined(parts: Sequence[Mapping[str, torch.Tensor]], dim: int) -> Tensors:
    return concatenate(parts, dim)  # type: ignore[arg-type, return-value]


def _mean(values: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    return (values * valid).sum() / valid.sum().clamp(min=1)
