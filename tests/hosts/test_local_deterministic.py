"""Level 1 with a fixed lag: the same weights, whoever is fast."""

import pytest

from rlinf_async.hosts.local import LocalTrainer
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from tests.hosts.local_runs import same, small, small_policy

pytestmark = pytest.mark.timeout(120)


class Busy(PointReach):
    """Counts to `work` in every step, and steps like any other."""

    work = 0

    def chunk_step(self, actions):
        sum(range(self.work))
        return super().chunk_step(actions)


def shards_that_work(*counts):
    """Environments whose shards count so far, one after the other."""
    left = list(counts)

    def build(first, size):
        envs = Busy(size, first=first, seed=3)
        envs.work = left.pop(0)
        return envs

    return build


def run(*counts, lag=1, **changes):
    block = {"mode": "train", "deterministic": True, "train": {"max_staleness": lag}} if lag else None
    sizes = {"inference_ranks": 2, "rollout_epochs": 1, "batches": 20, "micro_batch_size": 40}
    settings = small(block, **{**sizes, "lr": 1e-2, "seed": 3} | changes)
    return LocalTrainer(settings, shards_that_work(*counts), small_policy).run()


@pytest.mark.parametrize("lag", [1, 3])
def test_twenty_steps_give_the_same_weights_bit_for_bit_whichever_shard_is_slow(lag):
    one, other = run(0, 50_000, lag=lag), run(50_000, 0, lag=lag)
    assert same(one.weights, other.weights)
    assert one.metrics == other.metrics


def test_every_trajectory_is_exactly_as_old_as_the_lag_once_the_first_are_trained():
    reports = run(0, 0, lag=2, batches=6).reports
    assert [(r.staleness.low, r.staleness.high) for r in reports] == [(0, 0), (1, 1), *[(2, 2)] * 4]


def test_the_fixed_lag_is_another_run_than_the_synchronous_one():
    assert not same(run(0, 0, lag=0).weights, run(0, 0, lag=1).weights)
