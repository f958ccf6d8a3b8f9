"""The decoupled objective, as a loss in RLinf's registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rlinf.algorithms.registry import get_policy_loss, register_policy_loss

from rlinf_async.core.objectives import behaviour_weight, decouple

NAME = "rlinf_async_decoupled"


class DecoupledLoss:
    """An on-policy loss of RLinf, anchored at the proximal policy and weighted by `pi_prox / mu`.

    RLinf's training step passes a loss only the fields that it knows; the proximal log-probabilities of
    the micro-batch are therefore set around the step, with `micro_batch`.
    """

    def __init__(self, base: str, *, level: str, action_dim: int) -> None:
        """`level` is RLinf's `algorithm.logprob_type`; `action_dim` the dimensions of one action."""
        self._level = level
        self._action_dim = action_dim
        self._base = get_policy_loss(base)
        self._proximal: torch.Tensor | None = None

    def register(self) -> str:
        """Make this the loss that RLinf finds under the returned name, in this process."""
        register_policy_loss(NAME)(self)
        return NAME

    @contextmanager
    def micro_batch(self, proximal: torch.Tensor) -> Iterator[None]:
        """The block in which one micro-batch is trained; `proximal` is [B, ...], like `logprobs`."""
        self._proximal = proximal
        try:
            yield
        finally:
            self._proximal = None

    def __call__(self, **kwargs: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        if self._proximal is None:
            raise RuntimeError("the decoupled loss was called outside of a micro-batch")
        behaviour, mask = kwargs["old_logprobs"], kwargs["loss_mask"]
        proximal = self._proximal.to(behaviour.device).float()
        proximal = at_ratio_level(proximal, self._level, self._action_dim)
        advantages = decouple(kwargs["advantages"], proximal, behaviour)
        loss, metrics = self._base(**{**kwargs, "old_logprobs": proximal, "advantages": advantages})
        with torch.no_grad():
            weights = behaviour_weight(proximal, behaviour)
            valid = weights if mask is None else weights[mask.expand_as(weights)]
            if valid.numel():
                metrics["actor/behaviour_weight"] = valid.mean()
                metrics["actor/behaviour_kl"] = -valid.log().mean()
        return loss, metrics


def at_ratio_level(logprobs: torch.Tensor, level: str, action_dim: int) -> torch.Tensor:
    """Sum log-probabilities to the level at which RLinf forms the ratio (`algorithm.logprob_type`).

    Args:
        logprobs: [B, ...], chunks x action dimensions in any layout.

    Returns:
        [B, chunks, action_dim] for token level, [B, chunks] for action level, [B] for chunk level.
    """
    tokens = logprobs.reshape(logprobs.shape[0], -1, action_dim)
    if level == "token_level":
        return tokens
    return tokens.sum(dim=-1) if level == "action_level" else tokens.sum(dim=(1, 2))
