"""Which RLinf is here, told from its sources."""

import sys

import pytest

from rlinf_async.hosts.rlinf import compat

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
    assert f"{compat.EmbodiedFSDPActor.__module__}.EmbodiedFSDPActor" == compat.home("EmbodiedFSDPActor")
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = compat.Nonsense


def test_a_failed_run_is_a_failure_until_it_has_ended_well(monkeypatch):
    monkeypatch.setattr(compat.Cluster, "_run_failed", False, raising=False)
    compat.fail_unless_cleared()
    assert compat.Cluster._run_failed
    compat.clear_failure()
    assert not compat.Cluster._run_failed
