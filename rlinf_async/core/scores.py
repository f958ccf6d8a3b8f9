"""Scores of actions that were taken: log-probabilities and values by a policy, pass by pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from rlinf_async.core.tensors import Tree, in_parts, size_of


def pass_size(samples: int, beyond: int, *, most: int) -> int:
    """Return the samples per pass over `samples` and the `beyond` others behind them, for as few passes as
    `samples` need.

    The samples beyond are few in comparison, and a pass of their own would take a GPU almost as long as one
    of `most`. So a pass holds more than `most` by their share of it.
    """
    passes = -(-samples // most)
    return -(-(samples + beyond) // passes)


def in_passes(most: int, samples: Tree, *beyond: Tree) -> Iterator[Tree]:
    """`samples` and then `beyond` them, in parts of `pass_size`; their number depends on sizes alone."""
    size = pass_size(size_of(samples), sum(map(size_of, beyond)), most=most)
    return in_parts(size, samples, *beyond)


def joined(
    outputs: Sequence[Mapping[str, torch.Tensor]], name: str, *, first: int, model: str
) -> torch.Tensor:
    """Field `name` of several passes over parts of a batch, in order, as float32 on the CPU.

    Args:
        first: how many samples are wanted; what others behind them have is not looked at.
        model: the key of the config that names the model, and its value.

    Raises:
        FloatingPointError: a number is not finite; it would end up in the weights.
    """
    # To the CPU pass by pass: the device need not hold the scores of the whole batch.
    scores = torch.cat([output[name].float().cpu() for output in outputs])[:first]
    share = 1 - scores.isfinite().float().mean().item()
    if share:
        raise FloatingPointError(
            f"{model}: {share:.0%} of the {name} of this batch, scored again before the update, are not "
            "finite; nothing was trained on them"
        )
    return scores
