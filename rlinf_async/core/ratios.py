"""Ratios between sampler, learner and policy versions; each cause of a difference is measured by itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch

from rlinf_async.core.objectives import loglinear
from rlinf_async.core.past_weights import PastWeights
from rlinf_async.core.scores import WHOLE, Scored, ScorePair
from rlinf_async.core.tensors import Tree, concatenate, leaf, rows_of, slice_samples
from rlinf_async.core.types import MAX_PROBE_SAMPLES

Sums = dict[str, float]


class RatioProbe:
    """Splits `pi_prox / mu` into its two factors, per staleness, on a few samples of every batch.

    Every sample of a batch is equally likely to be measured, whenever it arrived and at whichever step of an
    episode: each draws a random lot, and the samples with the lowest lots are kept.

    `mismatch` is `pi_v / mu`: the policy of the version v that acted, as the learner computes it, over the
    probability that the sampler stored; 1 unless kernels, precisions or batch shapes differ. `staleness`
    is `pi_prox / pi_v`: the updates in between. With `interpolates` there is also `proximal_error`: the
    log-linear interpolation minus the true `log pi_prox`, before and after the batch's updates.

    All ranks make equally many forward passes, whatever samples they hold, as sharded models require.
    """

    def __init__(
        self,
        past: PastWeights | None,
        score: Callable[[Tree], ScorePair],
        *,
        max_staleness: int,
        interpolates: bool = False,
        size: int = MAX_PROBE_SAMPLES,
    ) -> None:
        """`score` returns the log-probabilities of the present policy for the inputs of samples, and those
        stored when the samples were drawn: log mu, in the same shape. Without `past` only `mismatch` at a
        staleness of 0 is measured, on samples that were added with their `scores`."""
        self._past = past
        self._score = score
        self._max_staleness = max_staleness
        self._interpolates = interpolates
        self._size = size
        self._batch = 0
        self._pools: dict[int, Tree] = {}
        # A generator of its own, seeded by the batch: measuring changes no other random number of the run.
        self._lots = torch.Generator()

    def begin(self, batch: int) -> None:
        """Start `batch`: the present policy is the version of that number, and `past` remembers it."""
        self._batch = batch
        self._pools.clear()
        self._lots.manual_seed(batch)

    def add(self, inputs: Tree, staleness: torch.Tensor, scores: ScorePair | None = None) -> None:
        """Add samples of the batch.

        Args:
            inputs: the inputs of `score`.
            staleness: versions between the action and the batch, [B].
            scores: the result of `score` with the policy that began the batch; None: `finish` computes it.
        """
        lots = torch.rand(len(staleness), generator=self._lots)
        proximal, behaviour = scores or (None, None)
        samples: Tree = {"inputs": inputs, "proximal": proximal, "behaviour": behaviour}
        for value in range(self._max_staleness + 1):
            rows = torch.nonzero(staleness == value).flatten()
            rows = rows[lots[rows].argsort()[: self._size]]
            if len(rows):
                group = {"lots": lots[rows], **rows_of(samples, rows)}
                pool = self._pools.get(value)
                self._pools[value] = group if pool is None else self._lowest(concatenate([pool, group]))

    def _lowest(self, samples: Tree) -> Tree:
        return rows_of(samples, leaf(samples, "lots").argsort()[: self._size])

    @torch.no_grad()
    def finish(self, scored: Scored = WHOLE) -> Sums:
        """Return sums over this rank's samples, to be added over the ranks and then given to `averages`.

        They are sums over the ratios of whole actions, also where a part of an action is `scored`.

        Afterwards `past` remembers the present policy as the version of the next batch.
        """
        # A rank without samples of a staleness makes the pass with a sample of another, and adds 0 to the
        # sums.
        spare = slice_samples(next(iter(self._pools.values())), 0, 1)
        samples = [self._pools.get(staleness, spare) for staleness in range(self._max_staleness + 1)]
        scores = self._scores(samples)
        sums: Sums = {}
        for staleness, sample in enumerate(samples):
            # 0 rather than no entry: sums are added over ranks by name, so that all ranks need the same
            # names. And not a product with 0, as 0 times a ratio that is not finite is NaN.
            counts = staleness in self._pools
            for name, values in self._measure(staleness, sample, scores).items():
                sums |= {
                    f"{name}/lag_{staleness}/{measure}": float(total) if counts else 0.0
                    for measure, total in _totals(values, scored).items()
                }
        return sums

    def _scores(self, samples: Sequence[Tree]) -> dict[tuple[int, int], ScorePair]:
        """By (version, staleness): scores by the policy that acted, if `past` remembers it, and by the policy
        that began the batch, if `add` was not given them."""
        has_scores = samples[0]["proximal"] is not None
        pairs: dict[tuple[int, int], ScorePair] = {}
        if self._past is None:
            return pairs

        def ask(version: int) -> None:
            for staleness, sample in enumerate(samples):
                if version in (self._batch, self._batch - staleness):
                    pairs[version, staleness] = self._scores_of(sample)

        # The last version is the policy that began the batch: visited only if its scores are not known yet.
        versions = range(self._batch - self._max_staleness, self._batch + (not has_scores))
        self._past.visit(versions, ask, present=self._batch + 1)
        return pairs

    def _measure(
        self, staleness: int, samples: Tree, scores: Mapping[tuple[int, int], ScorePair]
    ) -> dict[str, torch.Tensor]:
        """Log-ratios by name, without those of a version that `past` does not remember (after a resume)."""
        proximal, behaviour = scores.get(
            (self._batch, staleness), (samples["proximal"], samples["behaviour"])
        )
        if proximal is None or behaviour is None:
            return {}
        assert isinstance(proximal, torch.Tensor)
        assert isinstance(behaviour, torch.Tensor)
        ratios: dict[str, torch.Tensor] = {}
        if staleness == 0:
            ratios["mismatch"] = proximal - behaviour
        elif (self._batch - staleness, staleness) in scores:
            acted_scores, _ = scores[self._batch - staleness, staleness]
            ratios |= {"mismatch": acted_scores - behaviour, "staleness": proximal - acted_scores}
        if self._interpolates:
            versions = torch.tensor(staleness)
            # After `visit`, so with the present weights again: those after the updates.
            latest, _ = self._scores_of(samples)
            ratios["proximal_error/before"] = loglinear(proximal, behaviour, versions) - proximal
            ratios["proximal_error/after"] = loglinear(latest, behaviour, versions) - proximal
        return ratios

    def _scores_of(self, samples: Tree) -> ScorePair:
        inputs = samples["inputs"]
        assert isinstance(inputs, dict)
        policy, behaviour = self._score(inputs)
        return policy.float().cpu(), behaviour.float().cpu()


def _totals(log_ratios: torch.Tensor, scored: Scored) -> dict[str, torch.Tensor]:
    return {
        "count": torch.tensor(log_ratios.numel()),
        "ratio": scored.ratio(log_ratios).sum(),
        "kl": scored.divergence(log_ratios).sum(),
        "abs_log": scored.log(log_ratios).abs().sum(),
    }


def averages(sums: Mapping[str, float]) -> dict[str, float]:
    """The mean of each measure of `RatioProbe.finish`, without the staleness values that no sample had."""
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
