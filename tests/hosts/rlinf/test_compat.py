"""What differs between versions of RLinf."""

import os
import subprocess
import sys
from pathlib import Path

from rlinf_async.hosts.rlinf import borrowed, worker_groups
from rlinf_async.hosts.rlinf.advantages import explained_variance
from tests.checkouts import checkout


def test_a_failed_run_is_a_failure_until_it_has_ended_well(monkeypatch):
    monkeypatch.setattr(borrowed.Cluster, "_run_failed", False, raising=False)
    worker_groups.fail_unless_cleared()
    assert borrowed.Cluster._run_failed
    worker_groups.clear_failure()
    assert not borrowed.Cluster._run_failed


SUMS = """
import numpy as np, torch
from rlinf.utils.metric_utils import append_to_dict, compute_critic_explained_variance_stats
from rlinf_async.hosts.rlinf.advantages import explained_variance

draw = np.random.default_rng(0)
returns, values = draw.normal(3, 2, (2, 4, 16)), draw.normal(3, 1, (2, 4, 16))
ranks = []
for rank in range(2):
    metrics = {}
    for given, predicted in zip(returns[rank], values[rank]):
        given, predicted = torch.tensor(given), torch.tensor(predicted)
        append_to_dict(metrics, compute_critic_explained_variance_stats(given, predicted))
        append_to_dict(metrics, {"critic/value_loss": 1.0})
    ranks.append(metrics)
sums = []
explained_variance(dict(ranks[1]), lambda found: sums.append(found) or found)
(found,) = explained_variance(ranks[0], lambda own: {n: own[n] + sums[0][n] for n in own}).items()
expected = 1 - np.var(returns - values) / np.var(returns)
assert found[0] == "critic/explained_variance" and abs(found[1] - expected) < 1e-4, (found, expected)
assert list(ranks[0]) == ["critic/value_loss"], ranks[0]
"""


def test_explained_variance_is_that_of_the_whole_batch_where_losses_report_sums():
    root = Path(__file__).parents[3]
    path = os.pathsep.join(map(str, (checkout("rlinf-main"), root)))
    done = subprocess.run(
        [sys.executable, "-c", SUMS],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_explained_variance_of_each_micro_batch_is_left_to_be_averaged(monkeypatch):
    monkeypatch.setattr(borrowed, "is_here", lambda name: False)
    metrics = {"critic/explained_variance": [0.5, 0.7]}
    assert explained_variance(metrics, lambda sums: sums) == {}
    assert metrics == {"critic/explained_variance": [0.5, 0.7]}
