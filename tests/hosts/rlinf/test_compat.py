"""Which RLinf is here, told from its sources."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlinf_async.hosts.rlinf import compat
from tests.checkouts import checkout

ENV_WORKER = """
class EnvWorker(Worker):
    def init_worker(self): ...
    def _setup_env_and_wrappers(self): ...
    def _init_env(self): ...
    def env_evaluate_step(self): ...
    async def compute_bootstrap_rewards(self): ...
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A package `rlinf` with an env worker alone, which raises when it is imported."""
    root = tmp_path / "checkout" / "rlinf"
    (root / "workers" / "env").mkdir(parents=True)
    (root / "__init__.py").write_text("raise AssertionError('nothing of RLinf is imported to look at it')")
    (root / "workers" / "env" / "env_worker.py").write_text(ENV_WORKER)
    monkeypatch.syspath_prepend(root.parent)
    for name in [name for name in sys.modules if name.split(".")[0] == "rlinf"]:
        monkeypatch.delitem(sys.modules, name)
    compat.rlinf_tree.cache_clear()
    yield root
    compat.rlinf_tree.cache_clear()


def test_the_rlinf_that_import_gives_counts_and_not_what_is_installed(tree):
    (tree.parent / "pyproject.toml").write_text('[project]\nname = "rlinf"\nversion = "0.9.1"\n')
    found = compat.rlinf_tree()
    assert (found.root, found.version) == (tree, "0.9.1")
    assert str(found) == f"RLinf 0.9.1 in {tree}"


def test_a_tree_that_says_no_version_does_not_borrow_that_of_an_installed_distribution(tree):
    assert compat.rlinf_tree().version == "of unknown version"


def test_what_the_classes_lack_is_named(tree):
    missing = compat.rlinf_tree().missing
    assert "EnvWorker.env_interact_step" in missing
    assert "EmbodiedFSDPActor" in missing
    assert not {"EnvWorker", "EnvWorker.init_worker", "EnvWorker.compute_bootstrap_rewards"} & set(missing)
    with pytest.raises(ValueError, match=r"EnvWorker\.env_interact_step"):
        compat.check_rlinf()


def test_a_name_is_imported_from_wherever_this_rlinf_keeps_it():
    assert compat.EnvOutput.__name__ == "EnvOutput"
    assert f"{compat.EmbodiedFSDPActor.__module__}.EmbodiedFSDPActor" == compat.dotted_name(
        "EmbodiedFSDPActor"
    )
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = compat.Nonsense


def test_a_failed_run_is_a_failure_until_it_has_ended_well(monkeypatch):
    monkeypatch.setattr(compat.Cluster, "_run_failed", False, raising=False)
    compat.fail_unless_cleared()
    assert compat.Cluster._run_failed
    compat.clear_failure()
    assert not compat.Cluster._run_failed


SUMS = """
import numpy as np, torch
from rlinf.utils.metric_utils import append_to_dict, compute_critic_explained_variance_stats
from rlinf_async.hosts.rlinf.compat import explained_variance

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
    monkeypatch.setitem(sys.modules, "rlinf.utils.metric_utils", SimpleNamespace())
    metrics = {"critic/explained_variance": [0.5, 0.7]}
    assert compat.explained_variance(metrics, lambda sums: sums) == {}
    assert metrics == {"critic/explained_variance": [0.5, 0.7]}
