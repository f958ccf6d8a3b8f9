"""RLinf's losses and advantages: those that are supported, and the off-policy corrections around them.

A corrected loss is registered in RLinf's registry, and wraps one of RLinf's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from omegaconf import DictConfig

from rlinf_async.config import Weighting
from rlinf_async.core.objectives import bounded_logprobs, loglinear, without_masked, without_signal
from rlinf_async.core.types import RatioLevel
from rlinf_async.hosts.kit.ratios import at_ratio_level, weighed
from rlinf_async.hosts.rlinf import borrowed

ON_POLICY_LOSSES = {
    "actor_critic": "actor_critic",
    "actor": "actor",
    "decoupled_actor_critic": "actor_critic",
}
"""{supported `algorithm.loss_type`: the on-policy loss that it reduces to}."""
CRITIC_LOSS = "actor_critic"
"""The on-policy loss that also trains a critic."""
ASYNC_PPO = "decoupled_actor_critic"
"""The `algorithm.loss_type` of configs for RLinf's own asynchronous PPO, `train_async.py`."""
GAE_TYPE, GRPO_TYPE = ADVANTAGE_TYPES = "gae", "grpo"
"""RLinf's values of `algorithm.adv_type` for PPO and for GRPO."""
NFT_LOSS = "embodied_nft"
"""RLinf's loss on the velocities of flow matching, which needs no likelihood; see `hosts.rlinf.nft`."""
LOSSES_WITHOUT_RATIO = {NFT_LOSS: (GRPO_TYPE, "raw")}
"""{supported `algorithm.loss_type` without probability ratios: values of `algorithm.adv_type` for it}."""
DISTILLATION = "opd"
"""The `algorithm.loss_type` and `algorithm.adv_type` of on-policy distillation, in RLinf's main branch."""
SCRIPT, ASYNC_SCRIPT = "train_embodied_agent.py (EmbodiedRunner)", "train_async.py (AsyncEmbodiedRunner)"
"""RLinf's scripts in `examples/embodiment`, and the runners that they start."""
OTHER_ALGORITHMS = {
    "embodied_sac": ("SAC", SCRIPT, ASYNC_SCRIPT),
    "embodied_dagger": ("DAgger", SCRIPT, ASYNC_SCRIPT),
    "offline_iql": ("IQL", "train_offline_rl.py (OfflineRunner)"),
    "rlt_ac": ("RLT", SCRIPT, ASYNC_SCRIPT),
    "rlt_td3": ("RLT", SCRIPT),
}
"""RLinf's losses other than policy gradients on fresh rollouts, with the names of their algorithms and the
scripts of RLinf that train with them (main a3816b59)."""
OTHER_ADVANTAGES = frozenset({"grpo_dynamic", "grpo_video", "raw", "reinpp"})
"""RLinf's values of `algorithm.adv_type` that PPO and GRPO do not have here."""
RATIO_LEVELS = ("token_level", "action_level", "chunk_level")
"""Supported values of `algorithm.logprob_type`: the level at which probability ratios are formed."""
COMPARING_TYPES = (GRPO_TYPE, "grpo_dynamic", "reinpp_baseline")
"""RLinf's values of `algorithm.adv_type` that compare the members of a group."""

LOSS_NAME = "rlinf_async"
"""The name in RLinf's registry of the loss that replaces the config's loss."""
Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]
"""A loss of RLinf: takes tensors [N, ...], and returns the loss and metrics."""
CRITIC_FIELDS = ("values", "prev_values", "returns")
"""Fields that RLinf squares before it applies the mask."""


def has_ratio(loss: object) -> bool:
    """Return True if RLinf's `loss_type` compares probabilities of two policies."""
    return str(loss) not in LOSSES_WITHOUT_RATIO


def is_served(loss: object, advantage: object) -> bool:
    """Return True if runs with a level on train with RLinf's `loss_type` and `adv_type`."""
    own = LOSSES_WITHOUT_RATIO.get(str(loss), ())
    return str(advantage) in (ADVANTAGE_TYPES if str(loss) in ON_POLICY_LOSSES else own)


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
    loss: Loss = (
        borrowed.compute_opd_actor_loss
        if name == DISTILLATION
        else borrowed.get_policy_loss(ON_POLICY_LOSSES[name])
    )
    return loss


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
    level: RatioLevel = algorithm.logprob_type.removesuffix("_level")
    return level


# A context variable: while the learner counts, another thread computes advantages of pieces to be scored.
_COUNTS_SILENT: ContextVar[bool] = ContextVar("counts_silent", default=True)


class GroupAdvantages:
    """RLinf's GRPO advantages, but 0 for groups without signal, which are counted.

    For equal scores RLinf divides rounding errors by their own standard deviation: seven scores of 0.7 get
    advantages of 0.06 there.
    """

    def __init__(self) -> None:
        own = borrowed.get_adv_and_returns(GRPO_TYPE)
        # RLinf stores a wrapper of the registered function.
        registered = inspect.unwrap(own)
        self._base: Callable[..., Any] = registered._base if isinstance(registered, GroupAdvantages) else own
        self._silent = 0

    def register(self) -> GroupAdvantages:
        """Register this object with RLinf as GRPO's advantages, in this process."""
        borrowed.register_advantage(GRPO_TYPE)(self)
        return self

    def __call__(self, **kwargs: Any) -> Any:
        """Return advantages [..., B] and returns, as RLinf's function; `rewards` [groups, members] are
        trajectories' scores.
        """
        advantages, returns = self._base(**kwargs)
        # [groups, members]: RLinf's `calculate_scores` has summed the rewards of each trajectory.
        silent = without_signal(kwargs["rewards"], kwargs["group_size"])
        self._silent += int(silent.sum()) if _COUNTS_SILENT.get() else 0
        members = silent.repeat_interleave(kwargs["group_size"]).to(advantages.device)
        return advantages.masked_fill(members, 0.0), returns

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Do not count groups inside the block, as the same advantages will be computed again."""
        token = _COUNTS_SILENT.set(False)
        try:
            yield
        finally:
            _COUNTS_SILENT.reset(token)

    def pop_silent(self) -> int:
        """Return the number of groups without signal since the last call."""
        silent, self._silent = self._silent, 0
        return silent


def estimate(cfg: DictConfig, rollout: Mapping[str, Any], *, normalize: bool) -> dict[str, torch.Tensor]:
    """Return RLinf's advantages and returns, with or without normalisation over `rollout` (fields [T, B,
    ...]).
    """
    algorithm = cfg.algorithm
    # The arguments and defaults of RLinf's `compute_advantages_and_returns`; its main branch has further ones
    # for other algorithms. RLinf does not pass `normalize_advantages`.
    estimates: dict[str, torch.Tensor] = borrowed.calculate_adv_and_returns(
        task_type=cfg.runner.task_type,
        adv_type=algorithm.adv_type,
        rewards=rollout["rewards"],
        dones=rollout["dones"],
        values=rollout.get("prev_values"),
        gamma=algorithm.get("gamma", 1),
        gae_lambda=algorithm.get("gae_lambda", 1),
        group_size=algorithm.get("group_size", 8),
        reward_type=algorithm.reward_type,
        loss_mask=rollout.get("loss_mask"),
        loss_mask_sum=rollout.get("loss_mask_sum"),
        normalize_advantages=normalize,
    )
    return estimates
