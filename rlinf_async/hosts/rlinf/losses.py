"""The off-policy objectives, as a loss in RLinf's registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from rlinf_async.config import Weighting
from rlinf_async.core.objectives import bounded_logprobs, loglinear, without_masked
from rlinf_async.core.types import RatioLevel
from rlinf_async.hosts.kit.ratios import at_ratio_level, weighed
from rlinf_async.hosts.rlinf.borrowed import get_policy_loss, register_policy_loss

LOSS_NAME = "rlinf_async_corrected"
CRITIC_FIELDS = ("values", "prev_values", "returns")
"""Fields that RLinf squares before it masks."""


class CorrectedLoss:
    """An on-policy loss of RLinf, anchored at the proximal policy and weighted against what acted.

    RLinf's training step passes a loss only the fields that it knows; those of the micro-batch are
    therefore set around the step, with `micro_batch`.
    """

    def __init__(
        self,
        base: str,
        *,
        weighting: Weighting,
        level: RatioLevel,
        action_dim: int,
        dual_clip: float | None = None,
    ) -> None:
        """`level` is that of RLinf's `algorithm.logprob_type`; `action_dim` the dimensions of one action.

        `dual_clip` is its `algorithm.clip_ratio_c`, which RLinf's asynchronous PPO gives to the loss and its
        synchronous training to those of a few models alone; what training gives comes first.
        """
        self._weighting = weighting
        self._level = level
        self._action_dim = action_dim
        self._base = get_policy_loss(base)
        self._defaults = {} if dual_clip is None else {"clip_ratio_c": dual_clip}
        self._micro_batch: Mapping[str, Any] | None = None
        self._version = 0

    def register(self) -> str:
        """Make this the loss that RLinf finds under the returned name, in this process."""
        register_policy_loss(LOSS_NAME)(self)
        return LOSS_NAME

    @contextmanager
    def micro_batch(self, fields: Mapping[str, Any], version: int) -> Iterator[None]:
        """The block in which one micro-batch is trained, for the batch of policy `version`.

        Of its `fields`, [B, ...] each, `proximal_logprobs` are used; or `versions`, [B, 1], to interpolate;
        and `forward_inputs`, which say what is scored.
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
        advantages = without_masked(mask, kwargs["advantages"]) * weights
        # RLinf exponentiates before it masks, and cuts nothing unless it is told to.
        logprobs, anchor = bounded_logprobs(current, proximal)
        changed = {"logprobs": logprobs, "old_logprobs": anchor, "advantages": advantages}
        critic = {
            name: without_masked(mask, kwargs[name]) for name in CRITIC_FIELDS if kwargs.get(name) is not None
        }
        loss, metrics = self._base(**{**self._defaults, **kwargs, **changed, **critic})
        return loss, metrics | _means(measures, mask)

    def _proximal(self, current: torch.Tensor, behaviour: torch.Tensor) -> torch.Tensor:
        if self._micro_batch is None:
            raise RuntimeError("the corrected loss was called outside of a micro-batch")
        if self._weighting.interpolates:
            versions = self._micro_batch["versions"].to(behaviour.device)
            acted = versions.reshape(-1, *[1] * (behaviour.dim() - 1))  # against the shape of a ratio
            return loglinear(current, behaviour, self._version - acted)
        proximal = self._micro_batch["proximal_logprobs"].to(behaviour.device).float()
        return at_ratio_level(proximal, self._level, self._action_dim)


def _means(measures: Mapping[str, torch.Tensor], mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Means over what `mask`, which broadcasts to each, leaves; none where it leaves nothing."""
    chosen = {
        name: entry if mask is None else entry[mask.expand_as(entry)] for name, entry in measures.items()
    }
    return {name: entry.mean() for name, entry in chosen.items() if entry.numel()}


def ratio_level(algorithm: Any) -> RatioLevel:
    """Return the level at which RLinf forms ratios, by its `algorithm` section."""
    level: RatioLevel = algorithm.logprob_type.removesuffix("_level")
    return level
