import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from rlinf_async.core.outliers import MAX_SECOND_MOMENT, outlier_cut


def alone(sums):
    return sums


def by_sorting(log_ratios, most):
    """As many of the smallest squares as have a mean of at most `most`, one after the other."""
    squares, kept = np.sort(np.asarray(log_ratios) ** 2), 0
    while kept < len(squares) and squares[: kept + 1].mean() <= most:
        kept += 1
    return kept


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("spread", [0.1, 0.3, 1.0, 5.0])
def test_as_few_samples_as_possible_are_left_out(seed, spread):
    log_ratios = np.random.default_rng(seed).standard_t(3, 200) * spread
    cut = outlier_cut(torch.tensor(log_ratios), alone)
    assert (abs(log_ratios) <= cut).sum() == by_sorting(log_ratios, MAX_SECOND_MOMENT)


def test_nothing_is_left_out_where_policies_are_near():
    assert outlier_cut(torch.full((10,), 0.19), alone) == np.inf
    assert outlier_cut(torch.zeros(0), alone) == np.inf


def test_ranks_with_different_samples_find_the_cut_of_all_of_them_together():
    log_ratios = torch.tensor(np.random.default_rng(0).normal(0, 0.6, 300))
    parts, sums = log_ratios.split([40, 260]), [[], []]
    meeting = threading.Barrier(2)

    def rank(number):
        def summed(own):
            sums[number].append(own)
            meeting.wait(timeout=60)
            both = [one[len(sums[number]) - 1] for one in sums]
            meeting.wait(timeout=60)
            return {name: both[0][name] + both[1][name] for name in own}

        return outlier_cut(parts[number], summed)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    assert first == second
    assert first == pytest.approx(outlier_cut(log_ratios, alone), rel=1e-9)


def test_a_sample_of_a_policy_that_is_gone_is_left_out_and_spoils_nothing():
    log_ratios = torch.cat([torch.full((100,), 0.1), torch.tensor([torch.inf, -torch.inf, 300.0])])
    assert 0.1 < outlier_cut(log_ratios, alone) < 20
