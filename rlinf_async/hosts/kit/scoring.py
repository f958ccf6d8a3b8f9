"""Scores recorded actions with one policy: to anchor a batch, and to examine the premise of a run.

Rollouts have the fields [T, B, ...]: `forward_inputs`, the policy's inputs for scoring its actions (in a
learner, their numbers in `HeldInputs`), `prev_logprobs` and `versions` of the policies that acted, and with a
critic `prev_values` of T + 1 observations. The host makes the passes without gradients, in its framework.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from rlinf_async.core import premise
from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.packing import passes_over, row_parts
from rlinf_async.core.premise import Premise, judge
from rlinf_async.core.scores import INPUTS_FIELD, WHOLE, ScorePair, ToScore
from rlinf_async.core.tensors import (
    BEYOND_FIELD,
    Tree,
    in_parts,
    leaf,
    put_rows,
    rows_of,
    size_of,
    slice_samples,
)
from rlinf_async.core.types import Piece
from rlinf_async.hosts.kit.ratios import scored_in
from rlinf_async.hosts.kit.samples import (
    LIVE_FIELD,
    PROXIMAL_FIELD,
    fields_without_inputs,
    flat,
    last_observations,
    samples_of,
    scored_rows,
    scoring_inputs,
    side_by_side,
)
from rlinf_async.loops.run_settings import RunSettings

LOGGER = logging.getLogger(__name__)

Forward = Callable[[Iterable[Tree]], Iterable[Mapping[str, torch.Tensor]]]
"""Makes a pass over each of several parts of the samples."""


def with_numbers(payload: Tree, inputs: HeldInputs) -> Tree:
    """Return the fields of a piece with the policy's inputs moved into `inputs`; their numbers there, [T, B]
    or [1, B], take their place.
    """
    numbers: Tree = {
        name: inputs.hold(field)
        for name in (INPUTS_FIELD, BEYOND_FIELD)
        if isinstance(field := payload.get(name), dict)
    }
    return payload | numbers


def recompute(
    rollout: Tree,
    beyond: Any,
    forward: Forward,
    *,
    micro_batch_size: int,
    values: bool,
    model: str,
    most: Callable[[int], int] = int,
) -> None:
    """`anchor` the rollout at the learner's present policy, by passes over `micro_batch_size` samples.

    Args:
        beyond: forward inputs of the last observation, [B, ...], or their numbers, [B]; read with `values`
            only.
        most: returns the largest of a number over all ranks, as they may have different numbers of live
            samples.
    """
    last = [last_observations(rollout, beyond)] if values else []
    samples = samples_of(rollout)
    rows = None
    if LIVE_FIELD not in rollout:
        parts = in_passes(micro_batch_size, samples, *last)
    else:
        live = leaf(rollout, LIVE_FIELD)
        rows = scored_rows(live, values=values)
        passes = most(passes_over(int(live.sum()), micro_batch_size))
        parts = row_parts(rows, passes, samples, *last)
    anchor(rollout, list(forward(parts)), values=values, model=model, rows=rows)


def anchor(
    rollout: Tree,
    scored: Sequence[Mapping[str, torch.Tensor]],
    *,
    values: bool,
    model: str,
    rows: torch.Tensor | None = None,
) -> None:
    """Add `proximal_logprobs` to `rollout`, and replace `prev_values`, by results of the proximal policy.

    With `values`, the values of all T + 1 observations are replaced, so that advantages are estimated by one
    policy version.

    A model that stores the log-probabilities of every denoise step scores one step, and returns the stored
    log-probabilities of that step: they become `acted_logprobs`.

    Args:
        scored: results of passes over the T * B samples and, for values, over the B last observations.
        model: the key of the config that names the policy, and its value.
        rows: the ascending row numbers of the scored samples; None: all. Other rows keep their stored values.

    Raises:
        FloatingPointError: a result is not finite; it would end up in the weights.
    """
    stored = leaf(rollout, "prev_logprobs")
    steps, width = stored.shape[:2]
    decided = steps * width
    own = None if rows is None else rows[rows < decided]
    # Stored log-probabilities of all denoise steps have another shape than those of the scored step.
    kept = None if "prev_logprobs" in scored[0] else stored.flatten(0, 1)
    for name, field in (("logprobs", PROXIMAL_FIELD), ("prev_logprobs", "acted_logprobs")):
        if name in scored[0]:
            scores = joined(scored, name, first=decided if own is None else len(own), model=model)
            scores = put_rows(scores, own, kept, size=decided)
            rollout[field] = scores.reshape(steps, width, *scores.shape[1:])
    if values:
        old = leaf(rollout, "prev_values")
        everyone = decided + width
        scores = joined(scored, "values", first=everyone if rows is None else len(rows), model=model)
        rollout["prev_values"] = put_rows(scores, rows, old.flatten(0, 1), size=everyone).reshape(old.shape)


def compare(rollout: Tree, batch: int, forward: Forward, *, most: int, values: bool) -> premise.Sums:
    """Compare the stored scores of `rollout`, in batch `batch`, with the learner's (`core.premise.compare`).

    Args:
        most: the most samples of one pass.
    """
    # Without the row of the last observation, which has no decision.
    acting_values = {"prev_values": leaf(rollout, "prev_values")[:-1]} if values else {}
    samples = samples_of({**rollout, **acting_values}, *acting_values)

    def score(chosen: dict[str, Any]) -> dict[str, ScorePair]:
        (output,) = forward([chosen])
        pairs = {"logprobs": (output["logprobs"], output.get("prev_logprobs", chosen["prev_logprobs"]))}
        return pairs | ({"values": (output["values"], chosen["prev_values"])} if values else {})

    versions = _versions(rollout)
    return premise.compare(samples, versions, batch, most=most, score=score)


def _ages(batch: int, versions: torch.Tensor) -> torch.Tensor:
    return torch.where(versions < 0, -1, batch - versions)


def _versions(rollout: Tree) -> torch.Tensor:
    """Return the policy version of each of T * B decisions; -1 for decisions that are not live.

    If no decision is live, all have their version: every rank must compare some samples.
    """
    versions = leaf(rollout, "versions").flatten().long()
    live = rollout.get(LIVE_FIELD)
    if not isinstance(live, torch.Tensor) or not live.any():
        return versions
    return torch.where(live.flatten(), versions, -1)


class KnowsPremise(Protocol):
    """A learner rank, which keeps the premise beyond the training of a batch."""

    premise: Premise | None


class ScoringTraining:
    """Scores actions by the host's passes without gradients; a part of `loops.streaming_learner.Training`.

    Before the first batch is trained, the run's premise is examined on it: with the weights that acted, the
    learner computes the same scores as inference did.
    """

    def __init__(
        self, rank: KnowsPremise, settings: RunSettings, *, inputs: HeldInputs, critic: bool, model: str
    ) -> None:
        """
        Args:
            inputs: the forward inputs of the batch's samples; the host's passes read them.
            model: the key of the config that names the policy, and its value.
        """
        self._inputs = inputs
        self._rank, self._settings, self._critic, self._model = rank, settings, critic, model
        self.premise = rank.premise if settings.asynchrony.advanced.measures else Premise()
        self.scored = WHOLE
        self._batch = 0
        self._examined: dict[str, float] = {}

    def passes(self, parts: Iterable[Tree], *, values: bool) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield the results of a pass without gradients over each of `parts`. Hosts implement this."""
        raise NotImplementedError

    def is_half(self) -> bool:
        """Return True if a part of the forward pass is in 16 bits. Hosts implement this."""
        raise NotImplementedError

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        """Return `sums` added over all learner ranks. Hosts implement this."""
        raise NotImplementedError

    def live(self, rollout: Tree) -> torch.Tensor | None:
        """Return the samples of a rollout that have a gradient, [T, B] bool; None: all. Hosts implement this.

        Called in the learner's thread and, at any time, in another one.

        Args:
            rollout: all fields of a rollout, or its `fields_without_inputs`.
        """
        raise NotImplementedError

    def joined(self, pieces: Sequence[Piece]) -> Tree:
        """Join the pieces along B, with the numbers of the policy's inputs in `HeldInputs`."""
        payloads = [with_numbers(piece.payload, self._inputs) for piece in pieces]
        return side_by_side(payloads, self._settings.horizon)

    def to_score(self, payload: Tree) -> ToScore:
        """See `loops.streaming_learner.Training`."""
        live = self.live(fields_without_inputs(payload, self._settings.horizon))
        return scoring_inputs(payload, live, values=self._critic)

    def most(self, count: int) -> int:
        """Return the largest `count` of all learner ranks. Hosts that leave samples out implement this."""
        raise NotImplementedError

    def at_level(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Sum log-probabilities of N decisions to the level of the ratios. Hosts implement this."""
        raise NotImplementedError

    def ratios(self, rollout: Tree, name: str) -> torch.Tensor:
        """Return the field `name` of a rollout at the level of ratios, for T * B decisions."""
        return self.at_level(leaf(rollout, name).float().flatten(0, 1))

    def look_at(self, rollout: Tree) -> None:
        """Find out which part of an action is scored, and examine the premise if no earlier batch has.

        Called before anything is trained, with the weights that drew the newest samples.
        """
        first = slice_samples(samples_of(rollout), 0, 1)
        self.scored = scored_in(self._inputs.with_inputs(first)[INPUTS_FIELD])
        # True on all ranks or on none: the passes and the sum below are collective calls.
        if self.premise is not None:
            return
        most, values = self._settings.micro_batch_size, self._critic
        forward = partial(self.passes, values=values)
        sums = self.summed(compare(rollout, self._batch, forward, most=most, values=values))
        half = self.is_half()
        self.premise = self._rank.premise = judge(sums, model=self._model, half=half, warn=LOGGER.warning)
        self._examined = self.premise.metrics

    def anchor(self, rollout: Tree, scores: Tree | None = None) -> None:
        """See `loops.streaming_learner.Training`."""
        assert self.premise is not None
        # Popped: it has one row per environment, so that it cannot be sliced and shuffled like samples.
        beyond: Any = flat({BEYOND_FIELD: rollout.pop(BEYOND_FIELD)})[BEYOND_FIELD]
        values = self._critic and not self.premise.keeps_values
        how: Any = {"values": values, "model": self._model}
        if scores is None:
            forward = partial(self.passes, values=values)
            size = self._settings.micro_batch_size
            recompute(rollout, beyond, forward, micro_batch_size=size, most=self.most, **how)
        else:
            # [T + 1, B, ...]: the last row is of the last observations, as in `scoring_inputs`.
            scored: Any = flat(scores)
            if LIVE_FIELD in rollout:
                how["rows"] = scored_rows(leaf(rollout, LIVE_FIELD), values=values)
                scored = rows_of(scored, how["rows"])
            anchor(rollout, [scored], **how)

    def probe_samples(self, rollout: Tree) -> tuple[Tree, torch.Tensor, ScorePair | None]:
        """See `loops.streaming_learner.Training`."""
        pair = None
        if PROXIMAL_FIELD in rollout:
            acted = "acted_logprobs" if "acted_logprobs" in rollout else "prev_logprobs"
            pair = self.ratios(rollout, PROXIMAL_FIELD), self.ratios(rollout, acted)
        # Batch N is trained from version N of the policy: the difference is an age in versions. Samples that
        # are not live have version -1, and an age that no probe selects.
        return samples_of(rollout), _ages(self._batch, _versions(rollout)), pair

    def score(self, inputs: Tree) -> ScorePair:
        """See `loops.streaming_learner.Training`."""
        # Unpacking exhausts the iterator: a host's `passes` may restore training mode after its last part.
        (output,) = self.passes([inputs], values=False)
        stored = output.get("prev_logprobs", leaf(inputs, "prev_logprobs"))
        return self.at_level(output["logprobs"].float()), self.at_level(stored.float())


def pass_size(samples: int, beyond: int, *, most: int) -> int:
    """Return the samples per pass over `samples` plus `beyond` more, in as few passes as `samples` alone
    need.

    The samples beyond are few in comparison, and a pass of their own would take a GPU almost as long as a
    pass of `most`. So they are spread over the passes, which may exceed `most` by that share.
    """
    # Both quotients are rounded up.
    passes = -(-samples // most)
    return -(-(samples + beyond) // passes)


def in_passes(most: int, samples: Tree, *beyond: Tree) -> Iterator[Tree]:
    """`samples` followed by `beyond`, in parts of `pass_size`; the number of parts depends on sizes alone."""
    size = pass_size(size_of(samples), sum(map(size_of, beyond)), most=most)
    return in_parts(size, samples, *beyond)


def joined(
    outputs: Sequence[Mapping[str, torch.Tensor]], name: str, *, first: int, model: str
) -> torch.Tensor:
    """Join field `name` of several passes over parts of a batch, in order, as float32 on the CPU.

    Args:
        first: the number of samples to return; those behind them are not checked.
        model: the config key that names the model, with its value; for messages.

    Raises:
        FloatingPointError: a number is not finite; it would end up in the weights.
    """
    # To the CPU pass by pass, so that the device need not hold the scores of the whole batch.
    scores = torch.cat([output[name].float().cpu() for output in outputs])[:first]
    # Counted, not averaged: the mean of no numbers is NaN.
    if bad := int((~scores.isfinite()).sum()):
        raise FloatingPointError(
            f"{model}: {bad / scores.numel():.0%} of the {name} of this batch, scored again before the "
            "update, are not finite; nothing was trained on them"
        )
    return scores
