"""The off-policy corrections around RLinf's losses.

A corrected loss is registered in RLinf's registry, and wraps one of RLinf's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.config import Weighting
from rlinf_async.core.objectives import bounded_logprobs, loglinear, without_masked
from rlinf_async.core.types import RatioLevel
from rlinf_async.hosts.kit.ratios import at_ratio_level, weighed
from rlinf_async.hosts.rlinf import borrowed
from rlinf_async.hosts.rlinf.losses import ASYNC_PPO, DISTILLATION, LOSS_NAME, ON_POLICY_LOSSES

Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]
"""A loss of RLinf: takes tensors [N, ...], and returns the loss and metrics."""
CRITIC_FIELDS = ("values", "prev_values", "returns")
"""Fields that RLinf squares before it applies the mask."""


class CorrectedLoss:
    """An on-policy loss of RLinf, clipped around the proximal policy and weighted by proximal over behaviour
    policy.

    RLinf's training step passes a loss only the fields that it knows; further fields of the micro-batch are
    set around the step, with `micro_batch`.
    """

    def __init__(
        self,
        base: Loss,
        *,
        weighting: Weighting,
        level: RatioLevel,
        action_dim: int,
        dual_clip: float | None = None,
        distils: bool = False,
    ) -> None:
        """Wrap `base`.

        Args:
            level: from RLinf's `algorithm.logprob_type`.
            action_dim: dimensions of one action.
            dual_clip: RLinf's `algorithm.clip_ratio_c`, which its asynchronous PPO passes to the loss, and
                its synchronous training only for a few models; a value that training passes takes precedence.
            distils: True if `base` is RLinf's loss of on-policy distillation, which has no ratio.
        """
        self._weighting = weighting
        self._level = level
        self._action_dim = action_dim
        self._base = base
        self._distils = distils
        self._defaults = {} if dual_clip is None else {"clip_ratio_c": dual_clip}
        self._micro_batch: Mapping[str, Any] | None = None
        self._version = 0

    @contextmanager
    def micro_batch(self, fields: Mapping[str, Any], version: int) -> Iterator[None]:
        """Set the fields of the micro-batch that is trained inside the block, for the batch of policy
        `version`.

        Of its `fields`, [B, ...] each, the loss uses `proximal_logprobs`, or `versions` [B, 1] to
        interpolate, and `forward_inputs` for the scored denoise steps.
        """
        self._micro_batch, self._version = fields, version
        try:
            yield
        finally:
            self._micro_batch = None

    def __call__(self, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        mask = kwargs["loss_mask"]
        current, behaviour = (without_masked(mask, kwargs[name]) for name in ("logprobs", "old_logprobs"))
        proximal = without_masked(mask, self._proximal(current.detach(), behaviour))
        assert self._micro_batch is not None
        inputs = self._micro_batch.get("forward_inputs", {})
        weights, measures = weighed(self._weighting, inputs, proximal, behaviour)
        advantages = without_masked(mask, kwargs["advantages"])
        if self._distils:
            # RLinf's reward, log pi_teacher - log mu, becomes that of the proximal policy.
            advantages = advantages + (behaviour.float() - proximal)
            logprobs, anchor = current, proximal
        else:
            # RLinf exponentiates before it masks, and by default without a bound.
            logprobs, anchor = bounded_logprobs(current, proximal)
        fields = {"logprobs": logprobs, "old_logprobs": anchor, "advantages": advantages * weights}
        critic = {
            name: without_masked(mask, kwargs[name]) for name in CRITIC_FIELDS if kwargs.get(name) is not None
        }
        loss, metrics = self._base(**{**self._defaults, **kwargs, **fields, **critic})
        return loss, metrics | _means(measures, mask)

    def _proximal(self, current: torch.Tensor, behaviour: torch.Tensor) -> torch.Tensor:
        if self._micro_batch is None:
            raise RuntimeError("the corrected loss was called outside of a micro-batch")
        if self._weighting.interpolates:
            # These fields are not on the device yet: RLinf's `train_micro_batch` moves a copy.
            versions = self._micro_batch["versions"].to(behaviour.device)
            # Broadcast against ratios.
            acting_versions = versions.reshape(-1, *[1] * (behaviour.dim() - 1))
            return loglinear(current, behaviour, self._version - acting_versions)
        # RLinf's actor loss asserts log-probabilities of float32.
        proximal = self._micro_batch["proximal_logprobs"].to(behaviour.device).float()
        return at_ratio_level(proximal, self._level, self._action_dim)


def register(loss: Loss, *, replaced: str = "") -> str:
    """Register `loss` with RLinf in this process, in the place of `replaced`, and return its name."""
    # RLinf shapes the batch of distillation by the name of its loss.
    name = DISTILLATION if replaced == DISTILLATION else LOSS_NAME
    borrowed.register_policy_loss(name)(loss)
    return name


def own_loss(name: str) -> Loss:
    """Return RLinf's own on-policy loss for the `algorithm.loss_type` `name`."""
    # Not looked up by its name, under which `register` puts another loss.
    return (
        borrowed.compute_opd_actor_loss
        if name == DISTILLATION
        else borrowed.get_policy_loss(ON_POLICY_LOSSES[name])
    )


def corrected_loss(
    cfg: DictConfig, loss: str, weighting: Weighting, *, around: Callable[[Loss], Loss] = lambda base: base
) -> CorrectedLoss:
    """Return RLinf's loss named `loss`, clipped around the proximal policy and weighted as `weighting` says.

    `around` may wrap RLinf's own loss, which gets the corrected fields.
    """
    algorithm = cfg.algorithm
    # RLinf passes the key only to the loss of its asynchronous PPO, though configs of other losses have it as
    # well.
    dual_clips = loss == ASYNC_PPO
    return CorrectedLoss(
        around(own_loss(loss)),
        weighting=weighting,
        level=ratio_level(algorithm),
        # 7 and 3.0 are the defaults of RLinf's actors.
        action_dim=cfg.actor.model.get("action_dim", 7),
        dual_clip=algorithm.get("clip_ratio_c", 3.0) if dual_clips else None,
        distils=loss == DISTILLATION,
    )


def _means(measures: Mapping[str, torch.Tensor], mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return means over the entries in `mask`, which broadcasts to each measure; none if there are no
    entries.
    """
    chosen = {
        name: entry if mask is None else entry[mask.expand_as(entry)] for name, entry in measures.items()
    }
    return {name: entry.mean() for name, entry in chosen.items() if entry.numel()}


def ratio_level(algorithm: Any) -> RatioLevel:
    """Return the level at which RLinf forms ratios, by its `algorithm` section."""
    return algorithm.logprob_type.removesuffix("_level")
