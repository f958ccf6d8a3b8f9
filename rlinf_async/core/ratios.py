"""How far sampler, learner and policy versions differ, measured apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import torch

from rlinf_async.core.objectives import loglinear
from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.tensors import Tree, concatenate, map_tensors, slice_samples

SAMPLES = 32
"""Samples per staleness, batch and learner rank on which ratios are measured at most."""

Sums = dict[str, float]


class RatioProbe:
    """Splits `pi_prox / mu` into its two factors, per staleness, on a few samples of every batch.

    Every sample of a batch is as likely to be among them, whenever it arrived and at whichever step of an
    episode: a lot is drawn for each, and the lowest are kept.

    `mismatch` is `pi_v / mu`: the policy of the version v that acted, as the learner computes it, over the
    probability that the sampler stored; 1 unless kernels, precisions or batch shapes differ. `staleness`
    is `pi_prox / pi_v`: the updates in between. With `interpolates` there is also `proximal_error`: how
    far the log-linear interpolation is from the true `log pi_prox`, before and after the batch's updates.

    Ranks make equally many forward passes, whatever samples they hold, as sharded models require.
    """

    def __init__(
        self,
        past: PastWeights,
        score: Callable[[Tree], torch.Tensor],
        *,
        max_staleness: int,
        interpolates: bool = False,
        size: int = SAMPLES,
    ) -> None:
        """`score` gives the log-probabilities of the present policy for the inputs of samples."""
        self._past = past
        self._score = score
        self._max_staleness = max_staleness
        self._interpolates = interpolates
        self._size = size
        self._batch = 0
        self._held: dict[int, Tree] = {}
        self._lots = torch.Generator().manual_seed(0)

    def begin(self, batch: int) -> None:
        """Batch `batch` is about to be trained, by the policy of that version, which `past` remembers."""
        self._batch = batch
        self._held.clear()

    def add(
        self,
        inputs: Tree,
        behaviour: torch.Tensor,
        staleness: torch.Tensor,
        proximal: torch.Tensor | None = None,
    ) -> None:
        """Samples of the batch.

        Args:
            inputs: what `score` needs.
            behaviour: log mu, in the shape of `score`'s result.
            staleness: versions between the action and the batch, [B].
            proximal: log pi_prox in the same shape, where it is known; else it is scored in the end.
        """
        lots = torch.rand(len(staleness), generator=self._lots)
        samples: Tree = {"inputs": inputs, "behaviour": behaviour, "proximal": proximal}
        for value in range(self._max_staleness + 1):
            rows = torch.nonzero(staleness == value).flatten()
            rows = rows[lots[rows].argsort()[: self._size]]
            if len(rows):
                found = {"lots": lots[rows], **_taken(samples, rows)}
                held = self._held.get(value)
                self._held[value] = found if held is None else self._lowest(concatenate([held, found]))

    def _lowest(self, samples: Tree) -> Tree:
        return _taken(samples, samples["lots"].argsort()[: self._size])  # type: ignore[union-attr]

    def finish(self) -> Sums:
        """Sums over this rank's samples, to be added over the ranks and then given to `averages`."""
        sums: Sums = {}
        for staleness in range(self._max_staleness + 1):
            held = self._held.get(staleness)
            # A rank without such samples takes part with one of others, and counts nothing.
            samples = held if held is not None else slice_samples(next(iter(self._held.values())), 0, 1)
            share = float(held is not None)
            for name, values in self._measure(staleness, samples).items():
                sums |= {
                    f"{name}/lag_{staleness}/{measure}": share * float(total)
                    for measure, total in _totals(values).items()
                }
        return sums

    @torch.no_grad()
    def _measure(self, staleness: int, samples: Tree) -> dict[str, torch.Tensor]:
        """Log-ratios of each kind, unless the version that acted is not remembered (after a resume)."""
        inputs, behaviour = samples["inputs"], samples["behaviour"]
        assert isinstance(inputs, dict)
        assert isinstance(behaviour, torch.Tensor)
        found: dict[str, torch.Tensor] = {}
        proximal = samples["proximal"]
        if proximal is None:
            proximal = self._score_at(self._batch, inputs)
        assert isinstance(proximal, torch.Tensor)
        if staleness == 0:
            found["mismatch"] = proximal - behaviour
        elif self._batch - staleness in self._past:
            acted = self._score_at(self._batch - staleness, inputs)
            found |= {"mismatch": acted - behaviour, "staleness": proximal - acted}
        if self._interpolates:
            versions = torch.tensor(staleness)
            latest = self._score(inputs).float().cpu()
            found["proximal_error/before"] = loglinear(proximal, behaviour, versions) - proximal
            found["proximal_error/after"] = loglinear(latest, behaviour, versions) - proximal
        return found

    def _score_at(self, version: int, inputs: Tree) -> torch.Tensor:
        with self._past.at(version):
            return self._score(inputs).float().cpu()


def _taken(samples: Tree, rows: torch.Tensor) -> Tree:
    return map_tensors(lambda tensor: tensor[rows.to(tensor.device)], samples)


def _totals(log_ratios: torch.Tensor) -> dict[str, torch.Tensor]:
    ratios = log_ratios.exp()
    return {
        "count": torch.tensor(log_ratios.numel()),
        "ratio": ratios.sum(),
        "kl": (ratios - 1 - log_ratios).sum(),
        "abs_log": log_ratios.abs().sum(),
    }


def averages(sums: Mapping[str, float]) -> dict[str, float]:
    """Means of each measure of `RatioProbe.finish`; staleness that no sample had is left out."""
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in sums.items():
        key, _, measure = name.rpartition("/")
        groups[key][measure] = value
    return {
        f"{key}/{measure}": value / group["count"]
        for key, group in groups.items()
        if group["count"]
        for measure, value in group.items()
        if measure != "count"
    }
