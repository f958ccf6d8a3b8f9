"""Training in one process: advantages, the loss, its gradients and the optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from rlinf_async.core.objectives import (
    gae,
    group_relative,
    loglinear,
    ppo_loss,
    valid_steps,
    value_loss,
    without_masked,
    without_signal,
)
from rlinf_async.core.scores import Scored, ScorePair, ToScore
from rlinf_async.core.tensors import (
    Tensors,
    Tree,
    concatenate,
    leaf,
    map_tensors,
    put_rows,
    rows_of,
    size_of,
)
from rlinf_async.core.types import Piece
from rlinf_async.hosts.kit.ratios import weighed
from rlinf_async.hosts.kit.samples import (
    LIVE_FIELD,
    PROXIMAL_FIELD,
    LivePasses,
    couples_rows,
    fields_without_inputs,
    flat,
    samples_of,
    scored_rows,
    scoring_inputs,
    side_by_side,
    skipped,
)
from rlinf_async.hosts.local.policy import ActorCritic, DeviceQueue
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.shard import EPISODES_FIELD
from rlinf_async.loops.finite import SkippedSteps
from rlinf_async.loops.streaming_learner import Normalize, OneRank, StreamingLearner
from rlinf_async.observe.meters import BusyMeter, prefixed
from rlinf_async.observe.rollout_measures import REPORTED_FIELDS, mean_of_episodes, of_rollouts
from rlinf_async.observe.spans import UNRECORDED, SpanLog

ESTIMATES = ("advantages", "returns", "valid", "share", "counted")
"""Fields that `with_estimates` adds."""
SAMPLE_FIELDS = ("forward_inputs", "prev_logprobs", PROXIMAL_FIELD, "staleness", *ESTIMATES)
"""Fields of a sample, except its value: a rollout has one value more than decisions."""


def local_learner(
    settings: LocalSettings, model: ActorCritic, busy: BusyMeter, **options: Any
) -> StreamingLearner:
    """Return the learner of a run in one process; `options` are those of `LocalTraining`."""
    training = LocalTraining(settings=settings, model=model, **options)
    return StreamingLearner(training, settings.run, parameters=lambda: list(model.parameters()), busy=busy)


class LocalTraining(OneRank):
    """Trains `model` in one rank.

    The loss of an optimizer step is a sum over its samples divided by their number, which is known only when
    the step is complete. So gradients of sums are accumulated, and divided at the end: the division into
    micro-batches and the order of arrival change only the rounding.
    """

    def __init__(
        self,
        *,
        settings: LocalSettings,
        model: ActorCritic,
        spans: SpanLog = UNRECORDED,
    ) -> None:
        self.model, self._settings, self._spans = model.train(), settings, spans
        self._queue = DeviceQueue(model)
        self._optimizer = _optimizer(model, lr=settings.lr, value_lr=settings.value_lr)
        self._skipped_steps = SkippedSteps()
        self._passes: LivePasses | None = None
        if settings.run.left_out and not couples_rows(self.model):
            size = settings.run.micro_batch_size
            # `most=int`: there is no other rank with more passes.
            self._passes = LivePasses(settings.run.left_out, size=size, streams=True, most=int)

    @property
    def scored(self) -> Scored:
        return self.model.scored

    def working(self) -> AbstractContextManager[None]:
        return self._queue.block()

    def begin(self, batch: int) -> None:
        self._batch = batch
        self._metrics: dict[str, list[float]] = defaultdict(list)
        self._count = self._loss = 0.0
        self._silent = 0
        self._reports: list[Tensors] = []
        self._episodes: list[Tensors] = []
        self._skipped_steps.begin(batch, self._settings.asynchrony.advanced)

    def rollout(self, pieces: Sequence[Piece]) -> Tree:
        payloads = [dict(piece.payload) for piece in pieces]
        # Not joined, as environments may return different statistics in each rollout.
        statistics: list[Any] = [flat(payload.pop(EPISODES_FIELD, {})) for payload in payloads]
        self._episodes += statistics
        fields = side_by_side(payloads, self._settings.horizon)
        self._note_episodes(fields)
        rollout = self._queue.put(fields)
        if self._passes is not None:
            rollout[LIVE_FIELD] = live_decisions(rollout, self._settings)  # type: ignore[arg-type]
        return {
            **rollout,
            PROXIMAL_FIELD: rollout["prev_logprobs"],
            "staleness": self._batch - leaf(rollout, "versions"),
        }

    def _note_episodes(self, fields: Tree) -> None:
        """Note returns, and successes: ends that are no truncations. Rewards after the end do not count."""
        ended, rewards, cut = (leaf(fields, name) for name in ("ended", "rewards", "truncated"))
        del fields["truncated"]  # not needed below
        success = ended & ~cut
        self._metrics["env/success_once"] += map(float, success.any(dim=0))
        self._metrics["env/return"] += map(float, (rewards * valid_steps(ended)).sum(dim=0))

    def to_score(self, payload: Any) -> ToScore:
        live = None
        if self._passes is not None:
            fields: Any = fields_without_inputs(payload, self._settings.horizon)
            live = live_decisions(fields, self._settings)
        return scoring_inputs(payload, live)

    def anchor(self, rollout: Tree, scores: Tree | None = None) -> None:
        if scores is None:
            scores = score_rollout(rollout, self.model)
        own = self._queue.put(scores)
        del rollout["bootstrap_inputs"]
        # T + 1 rows: only the value of the last observation is used, to bootstrap.
        logprobs, values = leaf(own, "logprobs")[:-1], leaf(own, "values")
        if LIVE_FIELD in rollout:
            # Decisions without a gradient were not scored, and keep their stored numbers.
            live = leaf(rollout, LIVE_FIELD)
            logprobs = torch.where(_over_parts(live, logprobs), logprobs, leaf(rollout, "prev_logprobs"))
            values = torch.where(torch.cat([live, live[-1:]]), values, leaf(rollout, "prev_values"))
        rollout |= {PROXIMAL_FIELD: logprobs, "prev_values": values}

    def estimate(self, rollout: Tree) -> torch.Tensor:
        rollout.update(with_estimates(rollout, self._settings))  # type: ignore[arg-type]
        if self._settings.algorithm == "grpo":
            groups = without_signal(_scores(rollout), self._settings.group_size)  # type: ignore[arg-type]
            self._silent += int(groups.sum())
        return leaf(rollout, "valid")

    def samples(self, rollout: Tree, order: torch.Tensor) -> Tree:
        self._reports.append({name: leaf(rollout, name) for name in REPORTED_FIELDS})
        columns = {name: rollout[name] for name in SAMPLE_FIELDS}
        columns["prev_values"] = leaf(rollout, "prev_values")[:-1]
        order = order.to(self._queue.device)
        return map_tensors(lambda tensor: tensor.flatten(0, 1)[order], columns)

    def train_micro_batch(self, samples: Tree, *, steps: bool) -> None:
        with self._spans.span("micro-batch"):
            self._count += float(leaf(samples, "counted").sum())
            self._train_live(samples, steps=steps)
        if steps:
            with self._spans.span("optimizer step"):
                self._step()

    def _train_live(self, samples: Tree, *, steps: bool) -> None:
        """Accumulate gradients of the live samples, at the latest when the optimizer steps."""
        if self._passes is None:
            self._accumulate(samples)  # type: ignore[arg-type]
            return
        advantages = leaf(samples, "advantages")
        self._passes.add(samples, self._passes.live(leaf(samples, "valid"), advantages))
        for one, packed, _ in self._passes.due(is_last=steps):
            if one.size:  # the sample of an empty pass must not count
                self._accumulate(packed)  # type: ignore[arg-type]

    def note(self, name: str, value: torch.Tensor | float) -> None:
        self._metrics[f"train/{name}"].append(float(value))

    def finish(self, normalized: Normalize) -> dict[str, float]:
        # First, so that `means` replaces the environments' own numbers of the same name.
        metrics = {f"env/{name}": value for name, value in mean_of_episodes(self._episodes).items()}
        metrics |= {name: sum(values) / len(values) for name, values in self._metrics.items()}
        for report in self._reports:
            # The report was made when samples were cut, before the mean of the whole batch was known.
            report["advantages"] = normalized(report["advantages"])
        if self._reports:
            metrics |= prefixed("rollout", of_rollouts(self._reports))
        if self._settings.algorithm == "grpo":
            metrics["train/groups_without_signal"] = float(self._silent)
        left_out = {} if self._passes is None else skipped(self._passes.pop_counts())
        return metrics | self._skipped_steps.pop() | left_out

    def probe_samples(self, rollout: Tree) -> tuple[Tree, torch.Tensor, ScorePair | None]:
        samples = samples_of(rollout)
        pair = None
        if self._settings.asynchrony.recomputes:
            pair = (leaf(rollout, PROXIMAL_FIELD).flatten(0, 1).cpu(), leaf(samples, "prev_logprobs").cpu())
        staleness, live = leaf(rollout, "staleness"), rollout.get(LIVE_FIELD)
        if isinstance(live, torch.Tensor) and live.any():
            staleness = torch.where(live, staleness, -1)  # -1 leaves a sample out
        return samples, staleness.flatten().cpu(), pair

    def score(self, inputs: Tree) -> ScorePair:
        with as_inference(self.model):
            logprobs, _ = self.model.score(inputs["forward_inputs"])
        return logprobs, leaf(inputs, "prev_logprobs")

    def _accumulate(self, samples: Tensors) -> None:
        settings, share, valid = self._settings, samples["share"], samples["valid"]
        logprobs, values = self.model.score(samples["forward_inputs"])
        mask = _over_parts(valid, logprobs)
        behaviour = without_masked(mask, samples["prev_logprobs"])
        anchor = without_masked(mask, self._anchor(samples, logprobs))
        logprobs = without_masked(mask, logprobs)
        weights = self._weights(samples, anchor, behaviour)
        advantages = _over_parts(samples["advantages"], logprobs) * weights
        policy = ppo_loss(logprobs, anchor, advantages, clip_low=settings.clip, clip_high=settings.clip)
        loss = (_of_decisions(policy) * share).sum()
        if settings.algorithm == "ppo":
            values, old_values, returns = (
                without_masked(valid, each) for each in (values, samples["prev_values"], samples["returns"])
            )
            critic = value_loss(values, old_values, returns, clip=settings.value_clip)
            loss = loss + (critic * share).sum()
        torch.autograd.backward(loss)
        self._loss += float(loss.detach())
        self._note_mean("approx_kl", anchor - logprobs.detach(), valid)

    def _weights(
        self, samples: Tensors, anchor: torch.Tensor, behaviour: torch.Tensor
    ) -> torch.Tensor | float:
        """Return the importance weight of each ratio, and note the measures of the weights."""
        weighting = self._settings.asynchrony.weighting
        if weighting is None:
            return 1.0
        weights, measures = weighed(weighting, samples["forward_inputs"], anchor, behaviour)
        for name, each in measures.items():
            self._note_mean(name, each, samples["valid"])
        return weights

    def _note_mean(self, name: str, parts: torch.Tensor, valid: torch.Tensor) -> None:
        self.note(name, (_of_decisions(parts) * valid).sum() / valid.sum().clamp(min=1))

    def _anchor(self, samples: Tensors, logprobs: torch.Tensor) -> torch.Tensor:
        """Return `log pi_prox`, the center of the clipped ratio."""
        weighting = self._settings.asynchrony.weighting
        if weighting is None or not weighting.interpolates:
            return samples[PROXIMAL_FIELD]
        staleness = _over_parts(samples["staleness"], logprobs)
        return loglinear(logprobs.detach(), samples["prev_logprobs"], staleness)

    def _step(self) -> None:
        parameters = list(self.model.parameters())
        if all(parameter.grad is None for parameter in parameters):  # no sample was live: a step of zeros
            _set_to_zero(parameter for parameter in parameters if parameter.requires_grad)
        for parameter in parameters:
            if parameter.grad is not None:
                # Divide before the norm is clipped, as the limit is for the mean; by 1 at least, as a step
                # without a valid sample would divide 0 by 0.
                parameter.grad.div_(max(1.0, self._count))
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._settings.clip_grad)
        if not self._skipped_steps.step(float(norm)):
            self._optimizer.step()
        self._optimizer.zero_grad()
        self.note("loss", self._loss / max(1.0, self._count))
        self._count = self._loss = 0.0
        self.note("actor/grad_norm", norm)


def _optimizer(model: ActorCritic, *, lr: float, value_lr: float) -> torch.optim.Optimizer:
    critic = list(model.critic.parameters())
    critic_ids = set(map(id, critic))
    actor = [parameter for parameter in model.parameters() if id(parameter) not in critic_ids]
    groups = [{"params": actor, "lr": lr}, {"params": critic, "lr": value_lr}]
    optimizer = torch.optim.Adam(groups, eps=1e-5)
    # As RLinf: its optimizer takes an empty step at construction, which counts in Adam's bias correction.
    _set_to_zero(model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _set_to_zero(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Give each parameter a gradient of zeros."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)


def _over_parts(values: torch.Tensor, ratios: torch.Tensor) -> torch.Tensor:
    """Reshape `values` [N] of decisions to broadcast against `ratios` [N] or [N, parts]."""
    return values.view(*values.shape, *[1] * (ratios.dim() - values.dim()))


def _of_decisions(parts: torch.Tensor) -> torch.Tensor:
    """Return the mean over the parts of each decision, [N]."""
    return parts.reshape(len(parts), -1).mean(dim=1)


@contextmanager
def as_inference(model: ActorCritic) -> Iterator[None]:
    """Put the model into eval mode inside the block: scores must not depend on dropout."""
    model.eval()
    try:
        yield
    finally:
        model.train()


@torch.no_grad()
def score_rollout(rollout: Tree, model: ActorCritic) -> Tree:
    """Return `logprobs` and `values` of T + 1 observations by the present policy; 0 for samples that are not
    live.
    """
    inputs: list[Any] = [rollout[name] for name in ("forward_inputs", "bootstrap_inputs")]
    samples, rows = flat(concatenate(inputs)), None
    size, width = size_of(samples), leaf(rollout, "prev_logprobs").shape[1]
    if LIVE_FIELD in rollout:
        rows = scored_rows(leaf(rollout, LIVE_FIELD), values=True)
        # A pass needs at least one sample.
        samples = rows_of(samples, rows if len(rows) else rows.new_zeros(1))
    with as_inference(model):
        logprobs, values = model.score(samples)
    scores: Tree = {"logprobs": logprobs, "values": values}
    if rows is not None:
        scores = map_tensors(lambda tensor: put_rows(tensor[: len(rows)], rows, None, size=size), scores)
    return map_tensors(lambda tensor: tensor.unflatten(0, (-1, width)), scores)


def live_decisions(rollout: Tensors, settings: LocalSettings) -> torch.Tensor:
    """Return [T, B] bool: the decision has a gradient."""
    valid = valid_steps(rollout["ended"])
    if settings.algorithm != "grpo":
        return valid
    return valid & (group_relative(_scores(rollout), settings.group_size) != 0)


def with_estimates(rollout: Tensors, settings: LocalSettings) -> Tensors:
    """Add `advantages` (not yet normalised over the batch), `returns`, and the weights of samples in the
    loss.

    The loss of an optimizer step is the sum over samples of `share` times loss, divided by the sum of
    `counted`. Both are 0 for invalid samples, except that `weighting: episode` counts all samples, as RLinf
    does.
    """
    rewards, dones = rollout["rewards"], rollout["ended"]
    valid = valid_steps(dones)
    share = count = valid.float()
    if settings.weighting == "episode":
        share, count = share * len(share) / share.sum(dim=0), torch.ones_like(share)
    if settings.algorithm == "grpo":
        advantages = group_relative(_scores(rollout), settings.group_size) * valid
        returns = torch.zeros_like(rewards)
    else:
        if settings.horizon_ends:
            dones = torch.cat([dones[:-1], torch.ones_like(dones[-1:])])
        advantages, returns = gae(
            rewards, rollout["prev_values"], dones, gamma=settings.gamma, lam=settings.lam
        )
    return rollout | dict(zip(ESTIMATES, (advantages, returns, valid, share, count), strict=True))


def _scores(rollout: Tensors) -> torch.Tensor:
    """Return the reward sum of each first episode, [B]."""
    return without_masked(valid_steps(rollout["ended"]), rollout["rewards"]).sum(dim=0)
