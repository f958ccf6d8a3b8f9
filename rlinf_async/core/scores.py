"""Scores of actions that were taken: the event that a log-probability is of, and passes over many actions.

A policy that matches flows makes an action in K denoise steps. Its log-probability may be that of one step,
drawn at random, which had all of the noise, or the mean over all steps and the noise that they began with.
A change of weights moves the action in every step, so that the ratio of such log-probabilities is about 1 / K
of the change. Measures make up for that. Importance weights do not: policies that were weighted so learned
less. benchmarks/learning/flow-weight.md derives what is here, and has that experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from rlinf_async.core.tensors import Tree, in_parts, map_tensors, put_rows, size_of

LOG_BOUND = 20.0
"""Bound on a log-ratio before it is exponentiated, so that no ratio is infinite: infinity times a
gradient or an advantage of 0 is not a number."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The event that a log-probability is of: the action, one of `steps` denoise steps, or the mean over
    them all.

    The mean is over `steps` + 1 numbers: the noise that a chain begins with counts, and no policy changes it.
    """

    steps: int = 1
    joint: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} must be at least 1")

    @property
    def whole(self) -> bool:
        """True if it is the action's own: that of a Gaussian, of tokens, or of a single step."""
        return self.steps == 1 and not self.joint

    @property
    def factor(self) -> int:
        """By how much a log-ratio falls short of that of the action, to first order."""
        return self.steps + 1 if self.joint else self.steps

    def ratio(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """The ratio of the action's probabilities, of mean 1 where the samples were drawn; without bounds.

        For one step it is the first order of the product over all of them, 1 + K (r - 1), which the other
        steps' ratios are as likely to exceed as not; below 0 for a ratio r under 1 - 1 / K.
        """
        if self.joint:
            return bounded_exp(self.factor * log_ratios)
        ratios = bounded_exp(log_ratios)
        return ratios if self.whole else 1 + self.factor * (ratios - 1)

    def weight(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """Return the importance weight of a sample: the ratio of what is scored, whatever that is of."""
        return bounded_exp(log_ratios)

    def log(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """The log-ratio of the action, to first order."""
        return log_ratios if self.whole else self.factor * log_ratios

    def divergence(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """Entries whose mean over samples of one policy is its divergence (KL) from the other.

        With one noisy step, given the noise that the chain began with, a change of weights moves the action
        `factor` times as far as through that step, against the same noise: the divergence is its square
        times that of the step.
        """
        if self.joint:
            log_ratios = self.factor * log_ratios
        # With r for the ratio, r - 1 - log r is never below 0, and has the mean of -log r: that of r is 1.
        entries = bounded_exp(log_ratios) - 1 - log_ratios
        return entries if self.whole or self.joint else self.factor**2 * entries


WHOLE = Scored()


@dataclass(frozen=True, kw_only=True)
class ToScore:
    """The samples of a piece that are to be scored, of its (T + 1) * B: T decisions and a last observation.

    In the place of the last actions, which have not been taken, is anything.
    """

    samples: Tree
    """[R, ...]; one that nobody asked for, where there are no `rows`."""
    rows: torch.Tensor | None
    """[R] int64, ascending: the places of the samples; None where they are all."""
    size: int
    """(T + 1) * B."""

    def at_their_rows(self, scores: Tree) -> Tree:
        """`scores` of the samples, [R, ...], as those of all: [(T + 1) * B, ...], 0 for the others."""
        rows = self.rows
        if rows is None:
            return scores
        return map_tensors(lambda each: put_rows(each[: len(rows)], rows, None, size=self.size), scores)


def bounded_exp(log_ratios: torch.Tensor) -> torch.Tensor:
    """`exp` with its argument cut at `LOG_BOUND`: finite for all finite inputs."""
    return torch.exp(log_ratios.clamp(-LOG_BOUND, LOG_BOUND))


def pass_size(samples: int, beyond: int, *, most: int) -> int:
    """Return the samples per pass over `samples` and the `beyond` others behind them, for as few passes as
    `samples` need.

    The samples beyond are few in comparison, and a pass of their own would take a GPU almost as long as one
    of `most`. So a pass holds more than `most` by their share of it.
    """
    # The number of passes is that of `samples` alone; those beyond are spread over them. Both are rounded up.
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
    # Counted, not averaged: there may be no number at all.
    if bad := int((~scores.isfinite()).sum()):
        raise FloatingPointError(
            f"{model}: {bad / scores.numel():.0%} of the {name} of this batch, scored again before the "
            "update, are not finite; nothing was trained on them"
        )
    return scores
