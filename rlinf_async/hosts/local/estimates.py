"""From what was seen in a rollout to what a training step needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlinf_async.core.objectives import gae, group_relative, valid_steps, without_masked, without_signal
from rlinf_async.core.tensors import Tensors, Tree, concatenate, leaf, map_tensors
from rlinf_async.hosts.kit.scoring import flat
from rlinf_async.hosts.local.policy import ActorCritic
from rlinf_async.hosts.local.settings import LocalSettings


@contextmanager
def as_inference(model: ActorCritic) -> Iterator[None]:
    """Without dropout and the like, as inference acts: a score is of the policy, and not of a draw of it."""
    model.eval()
    try:
        yield
    finally:
        model.train()


@torch.no_grad()
def scored(rollout: Tree, model: ActorCritic) -> Tree:
    """Return `logprobs` and `values` of all T + 1 observations, by the policy that is trained."""
    inputs: list[Any] = [rollout[name] for name in ("forward_inputs", "bootstrap_inputs")]
    with as_inference(model):
        logprobs, values = model.score(flat(concatenate(inputs)))
    width = leaf(rollout, "prev_logprobs").shape[1]
    scores: Tree = {"logprobs": logprobs, "values": values}
    return map_tensors(lambda tensor: tensor.unflatten(0, (-1, width)), scores)


def estimated(rollout: Tensors, settings: LocalSettings) -> Tensors:
    """Adds `advantages` (not yet normalised over the batch), `returns`, and how samples are weighed.

    The loss of an optimizer step is the sum of `share` times the loss of each sample, over the sum of
    `counted`; both are 0 where a sample is not valid, except that RLinf counts all samples.
    """
    valid = valid_steps(rollout["ended"])
    advantages, returns = _advantages(rollout, valid, settings)
    share = count = valid.float()
    if settings.weighting == "episode":
        share, count = share * len(share) / share.sum(dim=0), torch.ones_like(share)
    return {
        **rollout,
        "valid": valid,
        "share": share,
        "counted": count,
        "advantages": advantages,
        "returns": returns,
    }


def silent_groups(rollout: Tensors, settings: LocalSettings) -> int:
    """Groups of a rollout whose members scored the same; 0 where none are compared."""
    if settings.algorithm != "grpo":
        return 0
    return int(without_signal(_scores(rollout), settings.group_size).sum())


def _scores(rollout: Tensors) -> torch.Tensor:
    """The return of each first episode, [B]."""
    valid = valid_steps(rollout["ended"])
    return without_masked(valid, rollout["rewards"]).sum(dim=0)


def _advantages(
    rollout: Tensors, valid: torch.Tensor, settings: LocalSettings
) -> tuple[torch.Tensor, torch.Tensor]:
    rewards, dones = rollout["rewards"], rollout["ended"]
    if settings.algorithm == "grpo":
        relative = group_relative(_scores(rollout), settings.group_size)
        return relative * valid, torch.zeros_like(rewards)
    if settings.horizon_ends:
        dones = torch.cat([dones[:-1], torch.ones_like(dones[-1:])])
    return gae(rewards, rollout["prev_values"], dones, gamma=settings.gamma, lam=settings.lam)
