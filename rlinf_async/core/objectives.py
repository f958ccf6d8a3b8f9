"""Objectives of PPO and GRPO under delay, in pure torch.

Notation: `mu` is the behaviour policy that sampled an action, `pi_prox` the proximal policy that anchors
the trust region, `pi_theta` the policy being optimised. Decoupled PPO (Hilton et al. 2022,
arXiv 2110.00641, eq. 2) minimises

    -E[ w * min(r * A, clip(r, 1 - eps, 1 + eps) * A) ],  w = pi_prox / mu (detached), r = pi_theta / pi_prox

Because `w >= 0`, it may be moved inside the minimum, and inside the dual clip too: decoupled PPO is plain
PPO with old log-probabilities `log pi_prox` and advantages `w * A`. So a host keeps its own loss, aggregation
and metrics. The other corrections differ in `w` alone (`importance_weight`).
"""

from __future__ import annotations

import torch

from rlinf_async.core.scores import LOG_BOUND, WHOLE, Scored, bounded_exp
from rlinf_async.core.types import Correction

MAX_ABS_LOGPROB = 1e4
"""The absolute value that replaces an infinite log-probability, for losses that subtract two of them: the
difference of two infinities is NaN."""
ROUNDING_UNITS = 32
"""Scores of a group count as equal if they differ by at most this many units in the last place of the
largest: sums of the same rewards in different orders differ by a few."""


def importance_weight(
    proximal: torch.Tensor,
    behaviour: torch.Tensor,
    *,
    correction: Correction,
    max_weight: float,
    scored: Scored = WHOLE,
) -> torch.Tensor:
    """Return the factor `w` of each advantage, detached, float32.

    With `rho = pi_prox / mu` of the `scored` event: rho (`decoupled`); min(rho, max_weight) (`tis`, truncated
    importance sampling, Ionides 2008); 1 (`none`).

    Args:
        proximal: log-probabilities by the proximal policy, at the level at which the ratio is clipped.
        behaviour: those by the policy that acted, in the shape of `proximal`.
    """
    if correction == "none":
        return torch.ones_like(proximal, dtype=torch.float32)
    # In float32: the difference of two bfloat16 log-probabilities has few digits left.
    log_ratios = proximal.detach().float() - behaviour.detach().float()
    rho = scored.weight(log_ratios)
    return rho.clamp(max=max_weight) if correction == "tis" else rho


@torch.no_grad()
def weight_measures(
    weights: torch.Tensor,
    proximal: torch.Tensor,
    behaviour: torch.Tensor,
    *,
    correction: Correction,
    max_weight: float,
    scored: Scored = WHOLE,
) -> dict[str, torch.Tensor]:
    """Return the metrics of the weights from `importance_weight`, one number per weight; the host averages.

    They are the weight; the divergence of the policy that acted from the proximal one; and, except for
    `decoupled`, 1 if the ratio exceeded `max_weight`, else 0.
    """
    log_ratios = proximal - behaviour
    # The samples come from mu, so that the mean of log(mu / pi_prox) over them is KL(mu, pi_prox).
    distance = -log_ratios if scored.whole else scored.divergence(log_ratios)
    measures = {"actor/behaviour_weight": weights, "actor/behaviour_kl": distance}
    if correction == "decoupled":
        return measures
    return measures | {"actor/behaviour_bounded": (bounded_exp(log_ratios) > max_weight).float()}


def bounded_ratio(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> torch.Tensor:
    """`exp(logprobs - old_logprobs)` with the difference cut at `LOG_BOUND`: finite for all finite inputs."""
    return bounded_exp(logprobs - old_logprobs)


def bounded_logprobs(logprobs: torch.Tensor, old_logprobs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both unchanged where they differ by at most `LOG_BOUND`; elsewhere make `old_logprobs` finite,
    and cut `logprobs` to that distance.

    For losses of frameworks, which exponentiate the difference without a bound. A cut entry has no gradient.
    """
    # NaN stays NaN: as 0, torch's default, a fault of the model would look like an action of probability 1.
    old_logprobs = torch.nan_to_num(
        old_logprobs, nan=torch.nan, posinf=MAX_ABS_LOGPROB, neginf=-MAX_ABS_LOGPROB
    )
    difference = (logprobs - old_logprobs).detach()
    cut = old_logprobs + difference.clamp(-LOG_BOUND, LOG_BOUND)
    near = difference.abs() <= LOG_BOUND
    return torch.where(near, logprobs, cut.detach()), old_logprobs


def without_masked(mask: torch.Tensor | None, values: torch.Tensor) -> torch.Tensor:
    """Replace `values` by 0, without gradient, where `mask` (broadcast) is false."""
    # Not a product with the mask: 0 times infinity is NaN.
    return values if mask is None else torch.where(mask, values, 0.0)


def loglinear(current: torch.Tensor, behaviour: torch.Tensor, staleness: torch.Tensor) -> torch.Tensor:
    """`log pi_prox` interpolated between `log mu` and `log pi_theta`, detached (A-3PO, arXiv 2512.06547).

    The true proximal policy is one version behind the one being trained, hence `staleness / (staleness + 1)`
    of the way from `mu`. The interpolation moves with `pi_theta`; the true proximal policy does not.

    Args:
        staleness: versions between the action and the batch that trains it; broadcasts to `current`.
    """
    share = staleness.float() / (staleness.float() + 1.0)
    interpolation: torch.Tensor = behaviour + share * (current - behaviour)
    return interpolation.detach()


def ppo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
) -> torch.Tensor:
    """The clipped surrogate per element (Schulman et al. 2017, eq. 7), optionally dual-clipped."""
    ratio = bounded_ratio(logprobs, old_logprobs)
    clipped_ratio = torch.clamp(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = torch.max(-advantages * ratio, -advantages * clipped_ratio)
    if dual_clip is not None:
        if dual_clip <= 1.0:
            raise ValueError(f"dual_clip={dual_clip} must be greater than 1")
        # The bound is dual_clip * |A|. For A > 0 the loss is negative, so that the bound acts on A < 0 only.
        loss = torch.min(loss, torch.sign(advantages) * dual_clip * advantages)
    return loss


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, *, clip: float
) -> torch.Tensor:
    """Half the squared error per element, with the change of the value clipped as in PPO."""
    clipped_values = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.max((returns - values) ** 2, (returns - clipped_values) ** 2)


def gae(
    rewards: torch.Tensor, values: torch.Tensor, dones: torch.Tensor, *, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    Args:
        rewards: [T, B]; `rewards[t]` follows the action at `t`.
        values: [T + 1, B], of one policy version; the last row bootstraps the cut.
        dones: [T + 1, B] bool; `dones[t + 1]` says that the episode ended with the action at `t`.

    Returns:
        Advantages and returns, [T, B] each.
    """
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[0])
    for step in reversed(range(rewards.shape[0])):
        is_end = dones[step + 1]
        # Filled, not multiplied by 0: values after the end of an episode may be NaN.
        bootstrap = (gamma * values[step + 1]).masked_fill(is_end, 0.0)
        delta = rewards[step] + bootstrap - values[step]
        running = delta + (gamma * lam * running).masked_fill(is_end, 0.0)
        advantages[step] = running
    return advantages, advantages + values[:-1]


def group_relative(scores: torch.Tensor, group_size: int) -> torch.Tensor:
    """GRPO's advantage of each episode over its group (Shao et al. 2024, section 4.1.2).

    Args:
        scores: [B], the members of a group side by side.
    """
    if scores.shape[0] % group_size:
        raise ValueError(f"{scores.shape[0]} episodes do not divide into groups of {group_size}")
    silent = without_signal(scores, group_size)
    groups = scores.reshape(-1, group_size).to(torch.promote_types(scores.dtype, torch.float32))
    deviations = groups - groups.mean(dim=1, keepdim=True)
    # 1e-6 as in RLinf: for groups with signal the advantages equal RLinf's bit for bit.
    relative = deviations / (groups.std(dim=1, keepdim=True) + 1e-6)
    return relative.masked_fill(silent[:, None], 0.0).view(-1)


def without_signal(scores: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return a mask of the groups with equal scores, up to the rounding of sums, [groups] bool.

    Their deviation is rounding error: divided by it, advantages would be noise as large as a signal.

    Args:
        scores: any shape; the members of a group side by side when flattened.
    """
    groups = scores.detach().reshape(-1, group_size)
    groups = groups.to(torch.promote_types(groups.dtype, torch.float32))
    spread = groups.amax(dim=1) - groups.amin(dim=1)
    return spread <= ROUNDING_UNITS * torch.finfo(groups.dtype).eps * groups.abs().amax(dim=1)


def valid_steps(dones: torch.Tensor) -> torch.Tensor:
    """Return a mask of the steps of the first episode, [T, B] bool, from dones [T + 1, B]."""
    # `dones[t]` belongs to the action before step t: a step is valid if no `dones` up to it is set.
    return (dones.long().cumsum(dim=0) == 0)[:-1]
