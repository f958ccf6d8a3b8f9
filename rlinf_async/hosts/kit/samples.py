"""The samples of a rollout: pieces joined for a learner, the samples that are scored, and live ones (those
with a gradient) in the passes of an optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.packing import LiveSamples, Packing, Part, Pass, row_parts
from rlinf_async.core.scores import INPUTS_FIELD, ToScore
from rlinf_async.core.tensors import BEYOND_FIELD, Tree, concatenate, leaf, lengthened, map_tensors, size_of

REWARDS_FIELD = "rewards"
SKIPPED_METRIC = "async/skipped/samples"
"""The share of a batch's samples, over all ranks and epochs, that were in no pass."""


def side_by_side(payloads: Sequence[Tree], horizon: int) -> Tree:
    """Join pieces along B into fields of a rollout of `horizon` decisions, [T, B, ...] or [T + 1, B, ...].

    The last decision of a shorter piece is repeated up to the horizon, without a reward: all episodes of the
    piece have ended, and the loss masks the repeated rows.
    """
    return concatenate([to_the_horizon(payload, horizon) for payload in payloads], dim=1)


def to_the_horizon(payload: Tree, horizon: int) -> Tree:
    """Return the fields of a piece, extended to `horizon` decisions."""
    missing = horizon - len(leaf(payload, "prev_logprobs"))
    if not missing:
        return payload
    beyond = {name: payload[name] for name in (BEYOND_FIELD,) if name in payload}
    longer = lengthened({name: field for name, field in payload.items() if name not in beyond}, missing)
    rewards = leaf(longer, REWARDS_FIELD)
    rewards[len(rewards) - missing :] = 0
    return longer | beyond


SAMPLE_FIELDS = (INPUTS_FIELD, "prev_logprobs")
"""Fields of a rollout that scoring needs."""

LIVE_FIELD = "live"
"""The field, [T, B] bool, with the samples that have a gradient; only these are scored. A rollout without the
field has a gradient everywhere."""

PROXIMAL_FIELD = "proximal_logprobs"
"""The field of log-probabilities of the proximal policy."""


def samples_of(rollout: Tree, *more: str) -> Tree:
    """Return the samples of a rollout that can be scored, with fields `more`: [T * B, ...]."""
    return flat({name: rollout[name] for name in (*SAMPLE_FIELDS, *more)})


def flat(tree: Any) -> Tree:
    """Return tensors of [T, B, ...] as those of T * B samples."""
    return map_tensors(lambda tensor: tensor.flatten(0, 1), tree)


def scoring_inputs(payload: Tree, live: torch.Tensor | None = None, *, values: bool = True) -> ToScore:
    """Return the samples of a piece for inference to score: T * B decisions, then B last observations.

    Args:
        live: the decisions with a gradient, [horizon, B] bool; None: all.
        values: True if values are scored, which include those of the last observations.
    """
    samples, last = samples_of(payload), last_observations(payload, flat(payload[BEYOND_FIELD]))
    size = size_of(samples) + size_of(last)
    if live is None:
        return ToScore(samples=concatenate([samples, last]), rows=None, size=size)
    rows = scored_rows(live, values=values)
    # A piece ends with its last episode, before the horizon: no later decision is live.
    rows = rows[rows < size]
    (chosen,) = row_parts(rows, 1, samples, last)
    return ToScore(samples=chosen, rows=rows, size=size)


def fields_without_inputs(payload: Tree, horizon: int) -> Tree:
    """Return the fields of a piece that tell which samples are live, extended to `horizon` decisions: all
    fields but the policy's inputs.
    """
    large = (INPUTS_FIELD, BEYOND_FIELD)
    return to_the_horizon({name: field for name, field in payload.items() if name not in large}, horizon)


def scored_rows(live: torch.Tensor, *, values: bool) -> torch.Tensor:
    """Return the ascending row numbers of the samples to score, if those of `live`, [T, B] bool, have a
    gradient.

    With `values`, the rows are of T + 1 observations.
    """
    # The last observation bootstraps the episodes that are alive until then.
    return torch.cat([live, live[-1:]] if values else [live]).flatten().nonzero().flatten()


def last_observations(rollout: Tree, inputs: Any) -> Tree:
    """Return the last observations as samples. Their other fields are arbitrary: only their value is read."""
    return {INPUTS_FIELD: inputs, "prev_logprobs": leaf(rollout, "prev_logprobs")[-1]}


class LivePasses:
    """Collects the live samples of micro-batches, and yields passes over them."""

    def __init__(self, leaves: LeftOut, *, size: int, streams: bool, most: Callable[[int], int]) -> None:
        """
        Args:
            size: the most samples of a pass.
            streams: True if passes are made before the micro-batches of a step are complete.
            most: returns the largest of a number over all ranks; a collective call.
        """
        self.leaves, self.size, self._streams, self._most = leaves, size, streams, most
        self._samples = LiveSamples(Packing(size=size, mixes=leaves.mixes))
        self._trained = self._seen = 0

    def live(self, mask: torch.Tensor | None, advantages: torch.Tensor) -> torch.Tensor:
        """Return which of N samples are trained, [N] bool.

        Args:
            mask: [N, ...], False for entries that the loss leaves out; None if it leaves out none.
            advantages: [N, ...]; they broadcast against `mask`.
        """
        live = self.leaves.live(mask, advantages)
        return torch.ones(len(advantages), dtype=torch.bool) if live is None else live

    def add(self, samples: Tree, live: torch.Tensor) -> int:
        """Add a micro-batch, [N, ...], with the `live` samples, [N] bool; return its number in the step."""
        self.count(seen=len(live), trained=int(live.sum()))
        return self._samples.add(samples, live)

    def count(self, *, seen: int, trained: int) -> None:
        """Count `seen` samples, of them `trained` in passes."""
        self._seen += seen
        self._trained += trained

    @property
    def waiting(self) -> int:
        """Live samples that wait for their pass."""
        return self._samples.live

    def give(self, rows: int) -> list[tuple[Part, Tree]]:
        """Return the last `rows` live samples, which another rank computes; see `Packing.give`."""
        return self._samples.give(rows)

    def take_over(self, samples: Tree) -> int:
        """Add live samples that another rank counts; return the number of their micro-batch in the step."""
        return self._samples.add(samples, torch.ones(size_of(samples), dtype=torch.bool))

    def due(self, *, is_last: bool) -> Iterator[tuple[Pass, Tree, bool]]:
        """Yield the passes to make after a micro-batch: (pass, its samples, True if it completes the step).

        An empty pass has one sample, which must not count.

        Args:
            is_last: True after the last micro-batch of a step.
        """
        passes = self._passes(is_last)
        for number, (one, samples) in enumerate(self._samples.take(passes), start=1):
            yield one, samples, is_last and number == passes
        if is_last:
            self._samples.finish()

    def _passes(self, is_last: bool) -> int:
        if is_last:
            return self._most(self._samples.needed)
        # The smallest number of full passes over all ranks.
        return -self._most(-self._samples.full) if self._streams else 0

    def pop_counts(self) -> dict[str, float]:
        """Return the numbers of samples `seen` and `trained` since the last call."""
        counts = {"seen": float(self._seen), "trained": float(self._trained)}
        self._trained = self._seen = 0
        return counts


def skipped(counts: dict[str, float]) -> dict[str, float]:
    """Return the metric from the counts of `pop_counts`, summed over all ranks."""
    return {SKIPPED_METRIC: 1 - counts["trained"] / counts["seen"]} if counts["seen"] else {}


def couples_rows(model: torch.nn.Module) -> bool:
    """Return True if a layer of `model`, in training mode, normalises over the samples of a pass."""
    layers = (torch.nn.modules.batchnorm._BatchNorm,)
    return any(isinstance(module, layers) and module.training for module in model.modules())
