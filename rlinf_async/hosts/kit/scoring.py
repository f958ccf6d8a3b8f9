"""Scores by one policy of actions that were taken: the anchor of a batch, and the premise of a run.

Rollouts have fields of [T, B, ...]: `forward_inputs`, by which the policy scores its actions, `prev_logprobs`
and `versions` of the policies that acted, and `prev_values` of T + 1 observations where there is a critic.
The host gives the passes without gradients, in its framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from rlinf_async.core import premise
from rlinf_async.core.scores import in_passes, joined
from rlinf_async.core.tensors import Tensors, Tree, concatenate, leaf, map_tensors

SAMPLE_FIELDS = ("forward_inputs", "prev_logprobs")
"""Fields of a rollout that make a sample which can be scored again."""

PROXIMAL = "proximal_logprobs"
"""The field of log-probabilities of the proximal policy."""

Forward = Callable[[Iterable[Tree]], Iterable[Mapping[str, torch.Tensor]]]
"""A pass over each of several parts of the samples."""


def samples_of(rollout: Tree, *more: str) -> Tree:
    """Return the samples of a rollout that can be scored, with fields `more`: [T * B, ...]."""
    return flat({name: rollout[name] for name in (*SAMPLE_FIELDS, *more)})


def flat(tree: Any) -> Tree:
    """Return tensors of [T, B, ...] as those of T * B samples."""
    return map_tensors(lambda tensor: tensor.flatten(0, 1), tree)


def scoring_inputs(payload: Tree) -> Tree:
    """Return the samples by which inference scores a piece: T * B decisions and, behind them, the last B
    observations.
    """
    return concatenate([samples_of(payload), _last(payload, flat(payload["bootstrap_inputs"]))])


def recompute(
    rollout: Tree, beyond: Tree, forward: Forward, *, micro_batch_size: int, values: bool, model: str
) -> None:
    """`anchor` the rollout at the present policy of the learner, by passes over `micro_batch_size` samples.

    Args:
        beyond: forward inputs of the last observation, [B, ...]; not looked at without `values`.
    """
    last = [_last(rollout, beyond)] if values else []
    outputs = list(forward(in_passes(micro_batch_size, samples_of(rollout), *last)))
    anchor(rollout, outputs, values=values, model=model)


def anchor(rollout: Tree, scored: Sequence[Mapping[str, torch.Tensor]], *, values: bool, model: str) -> None:
    """Add `proximal_logprobs` to `rollout`, and replace `prev_values`, by passes of the proximal policy.

    With `values`, those of all T + 1 observations come from it too, so that advantages are estimated by one
    policy version.

    A model that stores the log-probabilities of every denoise step scores one of them, and returns which
    of the stored ones belong to it: those become `acted_logprobs`.

    Args:
        scored: passes over the T * B samples and, for values, over the last B observations behind them.
        model: the key of the config that names the policy, and its value.

    Raises:
        FloatingPointError: a result is not finite; it would end up in the weights.
    """
    steps, width = leaf(rollout, "prev_logprobs").shape[:2]
    for name, field in (("logprobs", PROXIMAL), ("prev_logprobs", "acted_logprobs")):
        if name in scored[0]:
            found = joined(scored, name, first=steps * width, model=model)
            rollout[field] = found.reshape(steps, width, *found.shape[1:])
    if values:
        found = joined(scored, "values", first=(steps + 1) * width, model=model)
        rollout["prev_values"] = found.reshape(leaf(rollout, "prev_values").shape)


def compare(rollout: Tree, batch: int, forward: Forward, *, most: int, values: bool) -> premise.Sums:
    """`core.premise.compare` of the samples of batch `batch` in `rollout`, as the learner scores them.

    Args:
        most: samples that one pass may have.
    """
    stored = {"prev_values": leaf(rollout, "prev_values")[:-1]} if values else {}
    samples = samples_of({**rollout, **stored}, *stored)

    def score(chosen: dict[str, Any]) -> dict[str, premise.Pair]:
        (output,) = forward([chosen])
        pairs = {"logprobs": (output["logprobs"], output.get("prev_logprobs", chosen["prev_logprobs"]))}
        return pairs | ({"values": (output["values"], chosen["prev_values"])} if values else {})

    versions = leaf(rollout, "versions").flatten().long()
    return premise.compare(samples, versions, batch, most=most, score=score)


def scores_of(output: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the fields of a pass that a learner reads, on the CPU."""
    names = ("logprobs", "values", "prev_logprobs")
    return {name: output[name].float().cpu() for name in names if output.get(name) is not None}


def _last(rollout: Tree, inputs: Any) -> Tree:
    """The last observations as samples. Whatever was stored goes with them: only their value is wanted."""
    return {"forward_inputs": inputs, "prev_logprobs": leaf(rollout, "prev_logprobs")[-1]}
