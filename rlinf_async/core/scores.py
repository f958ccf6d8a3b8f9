"""Scores of actions that were taken: the event a log-probability belongs to, and passes over many actions.

A flow-matching policy makes an action in K denoise steps. Its log-probability may be that of one step, drawn
at random, which had all of the noise, or the mean over all steps and the initial noise. A change of weights
moves the action in every step, so that the ratio of such log-probabilities shows about 1 / K of the change.
Metrics make up for that. Importance weights do not: policies trained with such weights learned less.
benchmarks/learning/flow-weight.md has the derivation and the experiment.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rlinf_async.core.tensors import Tree, map_tensors, put_rows

INPUTS_FIELD = "forward_inputs"
"""The field of samples with the policy's inputs, or with their numbers in `core.held_inputs`."""

LOG_BOUND = 20.0
"""Bound on a log-ratio before it is exponentiated, so that no ratio is infinite: infinity times a
gradient or an advantage of 0 is NaN."""

ScorePair = tuple[torch.Tensor, torch.Tensor]
"""(scores by the learner's weights, scores that inference stored when it acted), of the same actions."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The event a log-probability belongs to: the action, one of `steps` denoise steps, or (`joint`) the mean
    over all of them.

    The mean is over `steps` + 1 numbers: it includes the initial noise of a chain, which no policy changes.
    """

    steps: int = 1
    joint: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps={self.steps} must be at least 1")

    @property
    def whole(self) -> bool:
        """True if the event is the action itself: of a Gaussian, of tokens, or of a single denoise step."""
        return self.steps == 1 and not self.joint

    @property
    def factor(self) -> int:
        """The log-ratio of the action divided by that of the event, to first order."""
        return self.steps + 1 if self.joint else self.steps

    def ratio(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """The ratio of the action's probabilities, without bounds; its mean over samples of the policy that
        acted is 1.

        For one step of ratio r it is the first order of the product over all steps, 1 + K (r - 1); the
        product is as likely to be above it as below. It is negative for r < 1 - 1 / K.
        """
        if self.joint:
            return bounded_exp(self.factor * log_ratios)
        ratios = bounded_exp(log_ratios)
        return ratios if self.whole else 1 + self.factor * (ratios - 1)

    def weight(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """Return the importance weight of a sample: the ratio of the scored event, not that of the action."""
        return bounded_exp(log_ratios)

    def log(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """The log-ratio of the action, to first order."""
        return log_ratios if self.whole else self.factor * log_ratios

    def divergence(self, log_ratios: torch.Tensor) -> torch.Tensor:
        """Return entries that average, over samples of one policy, to its divergence (KL) from the other.

        With one noisy step, and the initial noise of the chain given, a change of weights moves the action
        `factor` times as far as through that step alone, against the same noise: the divergence of the action
        is `factor` squared times that of the step.
        """
        if self.joint:
            log_ratios = self.factor * log_ratios
        # With r for the ratio, r - 1 - log r is never negative; its mean is that of -log r, as r has mean 1.
        entries = bounded_exp(log_ratios) - 1 - log_ratios
        return entries if self.whole or self.joint else self.factor**2 * entries


WHOLE = Scored()


@dataclass(frozen=True, kw_only=True)
class ToScore:
    """The samples of a piece that are to be scored, of its (T + 1) * B: T decisions and the last observation.

    The last observation has no action yet: its samples have an arbitrary one.
    """

    samples: Tree
    """[R, ...]; one placeholder sample if `rows` is empty."""
    rows: torch.Tensor | None
    """[R] int64, ascending: the index of each sample among (T + 1) * B; None if all are to be scored."""
    size: int
    """(T + 1) * B."""

    def at_their_rows(self, scores: Tree) -> Tree:
        """Spread the scores of the samples, [R, ...], to [(T + 1) * B, ...], with 0 for all other samples."""
        rows = self.rows
        if rows is None:
            return scores
        return map_tensors(lambda each: put_rows(each[: len(rows)], rows, None, size=self.size), scores)


def bounded_exp(log_ratios: torch.Tensor) -> torch.Tensor:
    """`exp` with its argument cut at `LOG_BOUND`: finite for all finite inputs."""
    return torch.exp(log_ratios.clamp(-LOG_BOUND, LOG_BOUND))
