import pytest
import torch

from rlinf_async.observe.rollout_measures import mean_of_episodes


def test_every_episode_counts_once_however_many_a_worker_has():
    workers = [
        {"return": torch.tensor([1.0, 2.0, 6.0])},
        {},
        {"return": torch.tensor([7.0]), "success_once": torch.tensor([True])},
    ]
    assert mean_of_episodes(workers) == {"return": 4.0, "success_once": 1.0, "num_trajectories": 4.0}


def test_where_no_episode_has_ended_nothing_is_said():
    assert mean_of_episodes([]) == mean_of_episodes([{}, {}]) == {}


def test_the_numbers_are_those_that_rlinf_reports():
    metrics = pytest.importorskip("rlinf.utils.metric_utils", reason="RLinf is not installed")
    torch.manual_seed(0)
    workers = [
        {"return": torch.rand(count, 1), "length": torch.randint(9, (count,)), "won": torch.rand(count) < 0.5}
        for count in (3, 1, 0, 8)
    ]
    del workers[1]["won"]
    theirs = metrics.compute_evaluate_metrics(workers)
    assert mean_of_episodes(workers) == {name: float(value) for name, value in theirs.items()}
