"""The loss of a micro-batch of decisions: veRL's policy, value and entropy losses, with off-policy
correction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss, compute_value_loss, get_policy_loss_fn
from verl.utils.metric import AggregationType, Metric
from verl.utils.torch_functional import masked_mean
from verl.workers.config import ActorConfig

from rlinf_async.core.objectives import bounded_logprobs, loglinear, without_masked
from rlinf_async.hosts.kit.ratios import at_ratio_level, weighed
from rlinf_async.hosts.verl.algorithms import TOKEN_MEAN_MODE
from rlinf_async.hosts.verl.settings import VerlSettings

WHOLE_TOKENS = "whole_tokens"
"""The key of the valid tokens of an optimizer step on all ranks, if the engine gets only a part of its
samples."""


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """The function that veRL's engine calls with the scores of a micro-batch; returns the loss and
    metrics.

    Fields of the micro-batch, N decisions of L ratios each: `old_log_probs`, `response_mask` [N, L] and
    `advantages` [N, L]; with a critic `values` and `returns` [N, L], equal along L; with a correction
    `behaviour_log_probs` [N, L] and, interpolated, `staleness` [N].

    A `streamed` micro-batch is not a whole optimizer step. A loss that veRL would divide by the valid tokens
    of the step is then a plain sum, and the learner divides the gradients by their number before it steps.
    """

    actor: ActorConfig
    settings: VerlSettings
    streamed: bool = False

    @property
    def divides_later(self) -> bool:
        """True if gradients are sums over valid tokens, to be divided by their number."""
        return self.streamed and self.actor.loss_agg_mode == TOKEN_MEAN_MODE

    @property
    def loss_agg_mode(self) -> str:
        return "token-sum" if self.divides_later else self.actor.loss_agg_mode

    def __call__(
        self, *, model_output: Mapping[str, torch.Tensor], data: TensorDict, dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        # veRL's losses read these values from the config.
        self.actor.global_batch_info.update(
            dp_size=data["dp_size"],
            batch_num_tokens=data[WHOLE_TOKENS] if WHOLE_TOKENS in data else data["batch_num_tokens"],
            global_batch_size=data["global_batch_size"],
            loss_scale_factor=self.actor.loss_scale_factor,
        )
        loss, metrics = self._policy_loss(model_output, data)
        if model_output.get("entropy") is not None and self.actor.entropy_coeff:
            entropy, measures = self._entropy(model_output["entropy"], data)
            loss = loss - self.actor.entropy_coeff * entropy
            metrics |= measures
        if "returns" in data:
            value, measures = self._value_loss(model_output, data)
            loss = loss + value
            metrics |= measures
        return loss, metrics

    def _policy_loss(
        self, model_output: Mapping[str, torch.Tensor], data: TensorDict
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        mask = data["response_mask"].bool()
        logprobs = without_masked(mask, at_level(model_output["logprobs"].float(), self.settings))
        anchor, weights, metrics = self._anchor(logprobs, data, mask)
        compute = get_policy_loss_fn(self.actor.policy_loss.get("loss_mode", "vanilla"))
        # Some of veRL's losses exponentiate without a bound, or subtract infinite numbers.
        logprobs, old_logprobs = bounded_logprobs(logprobs, anchor)
        loss, measures = compute(
            old_log_prob=old_logprobs,
            log_prob=logprobs,
            advantages=without_masked(mask, data["advantages"]),
            response_mask=mask,
            loss_agg_mode=self.loss_agg_mode,
            config=self.actor,
            # veRL's losses take the weights of samples under this name.
            rollout_is_weights=weights,
        )
        metrics |= Metric.from_dict(measures, aggregation=AggregationType.MEAN)
        return loss, metrics | {"actor/pg_loss": Metric(value=loss, aggregation=AggregationType.SUM)}

    def _anchor(
        self, logprobs: torch.Tensor, data: TensorDict, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, Any]]:
        """Return `log pi_prox`, the center of the clipped ratio, the weight of each entry, and metrics."""
        weighting = self.settings.asynchrony.weighting
        # Masked first: a NaN in a masked entry would pass through `0 * NaN` into the gradient.
        anchor = without_masked(mask, data["old_log_probs"])
        if weighting is None:
            return anchor, None, {}
        behaviour = without_masked(mask, data["behaviour_log_probs"])
        if weighting.interpolates:
            # Detached: a gradient through the anchor would cancel a part of the ratio's own.
            anchor = loglinear(logprobs.detach(), behaviour, data["staleness"][:, None])
        weights, entries = weighed(weighting, data.get("forward_inputs", {}), anchor, behaviour)
        measures = {name: masked_mean(entry, mask).item() for name, entry in entries.items()}
        return anchor, weights, Metric.from_dict(measures, aggregation=AggregationType.MEAN)

    def _entropy(self, entropy: torch.Tensor, data: TensorDict) -> tuple[torch.Tensor, dict[str, Any]]:
        mask = data["response_mask"].bool()
        mean = agg_loss(
            loss_mat=without_masked(mask, at_level(entropy.float(), self.settings).expand_as(mask)),
            loss_mask=mask,
            loss_agg_mode=self.loss_agg_mode,
            **self.actor.global_batch_info,
        )
        return mean, {"actor/entropy_loss": Metric(value=mean, aggregation=AggregationType.SUM)}

    def _value_loss(
        self, model_output: Mapping[str, torch.Tensor], data: TensorDict
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the value loss. Each entry of a decision has the decision's value, so that any averaging
        gives equal weights.
        """
        mask = data["response_mask"].bool()
        values = model_output["values"].float().reshape(len(mask), 1).expand_as(mask)
        values = without_masked(mask, values)  # veRL squares before it masks
        loss, clip_fraction = compute_value_loss(
            vpreds=values,
            returns=without_masked(mask, data["returns"]),
            values=without_masked(mask, data["values"]),
            response_mask=mask,
            cliprange_value=self.settings.value_clip,
            loss_agg_mode=self.loss_agg_mode,
            **self.actor.global_batch_info,
        )
        means = {
            "critic/vf_clipfrac": clip_fraction.detach().item(),
            "critic/vpred_mean": masked_mean(values, mask).detach().item(),
        }
        measures = Metric.from_dict(means, aggregation=AggregationType.MEAN)
        return loss, measures | {"critic/vf_loss": Metric(value=loss, aggregation=AggregationType.SUM)}


def at_level(logprobs: torch.Tensor, settings: VerlSettings) -> torch.Tensor:
    """Return `at_ratio_level` of N decisions in veRL's shape, [N, L]."""
    return at_ratio_level(logprobs, settings.ratio_level, settings.action_dim).reshape(len(logprobs), -1)
