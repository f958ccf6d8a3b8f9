"""The part of training that scores what was taken: a run's premise, and the anchor of each batch."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import torch

from rlinf_async.core.premise import Premise, judge
from rlinf_async.core.scores import WHOLE
from rlinf_async.core.tensors import Tree
from rlinf_async.hosts.kit.ratios import scored_in
from rlinf_async.hosts.kit.scoring import anchor, compare, flat, recompute
from rlinf_async.loops.run_settings import RunSettings

LOGGER = logging.getLogger(__name__)


class KnowsPremise(Protocol):
    """A learner rank, which outlives the training of a batch."""

    premise: Premise | None


class ScoringTraining:
    """Scores actions by passes of the host's without gradients; a part of `loops.streaming_learner.Training`.

    Before the first batch is trained, the run's premise is examined on it: at the weights that acted, the
    learner scores actions as inference did.
    """

    def __init__(self, rank: KnowsPremise, settings: RunSettings, *, critic: bool, model: str) -> None:
        """`model`: the key of the config that names the policy, and its value."""
        self._rank, self._settings, self._critic, self._model = rank, settings, critic, model
        self.premise = rank.premise if settings.asynchrony.advanced.measures else Premise()
        self.scored = WHOLE
        self._batch = 0
        self._examined: dict[str, float] = {}

    def passes(self, parts: Iterable[Tree], *, values: bool) -> Iterator[Mapping[str, torch.Tensor]]:
        """A pass without gradients over each of `parts`. A host makes them."""
        raise NotImplementedError

    def is_half(self) -> bool:
        """Return True if a part of the forward pass is in 16 bits. A host knows."""
        raise NotImplementedError

    def summed(self, sums: dict[str, float]) -> dict[str, float]:
        """Return sums over all learner ranks. A host makes them."""
        raise NotImplementedError

    def look_at(self, rollout: Tree) -> None:
        """See what is scored, and examine the premise if nobody has.

        That is before anything is trained: the weights are those that the newest samples were drawn with.
        """
        self.scored = scored_in(rollout["forward_inputs"])
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
        # Popped: it has one row per environment, which the slices and shuffles of samples do not fit.
        beyond = flat(rollout.pop("bootstrap_inputs"))
        values = self._critic and not self.premise.keeps_values
        how: Any = {"values": values, "model": self._model}
        if scores is None:
            forward = partial(self.passes, values=values)
            recompute(rollout, beyond, forward, micro_batch_size=self._settings.micro_batch_size, **how)
        else:
            scored: Any = flat(scores)
            anchor(rollout, [scored], **how)
