"""Which RLinf is here, told from its sources, and whether it can serve."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlinf_async.hosts.rlinf import borrowed, sources
from rlinf_async.hosts.rlinf.sources import Sources, sources_of
from rlinf_async.hosts.rlinf.tree import (
    SUPPORTED_VERSIONS,
    dotted_name,
    read_tree,
    rlinf_tree,
    supported_rlinf,
)
from tests.checkouts import TREES, package

ROOT = Path(__file__).parents[3]
BASE = """
from .worker import Worker as Base

class Distant(Base):
    limit: int = 3
    def __init__(self):
        self.far, self.wide = 1, 2
"""
ENV_WORKER = """
from rlinf.workers.base import Distant

class EnvWorker(Distant):
    def init_worker(self): ...
    async def env_evaluate_step(self):
        self.cfg: object = None
        other.thing = None
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A package `rlinf` with an env worker alone, which raises when it is imported."""
    root = tmp_path / "checkout" / "rlinf"
    (root / "workers" / "env").mkdir(parents=True)
    (root / "__init__.py").write_text("raise AssertionError('nothing of RLinf is imported to look at it')")
    (root / "workers" / "env" / "env_worker.py").write_text(ENV_WORKER)
    (root / "workers" / "base").mkdir()
    (root / "workers" / "base" / "__init__.py").write_text(BASE)
    (root / "workers" / "base" / "worker.py").write_text("class Worker:\n    def send(self): ...\n")
    monkeypatch.syspath_prepend(root.parent)
    for name in [name for name in sys.modules if name.split(".")[0] == "rlinf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sources, "_found", {})
    return root


def test_the_rlinf_that_import_gives_counts_and_not_what_is_installed(tree):
    (tree.parent / "pyproject.toml").write_text('[project]\nname = "rlinf"\nversion = "0.9.1"\n')
    found = rlinf_tree()
    assert (found.root, found.version) == (tree, "0.9.1")
    assert str(found) == f"RLinf 0.9.1 in {tree}"


def test_a_tree_that_says_no_version_does_not_borrow_that_of_an_installed_distribution(tree):
    assert rlinf_tree().version == "of unknown version"


def test_what_methods_set_and_bases_have_is_a_member_of_a_class(tree):
    place = "rlinf.workers.env.env_worker:EnvWorker"
    found = Sources(tree).members(place)
    assert found == {"init_worker", "env_evaluate_step", "cfg", "limit", "__init__", "far", "wide", "send"}


def test_what_the_classes_lack_is_named_with_what_needs_it(tree):
    missing = rlinf_tree().missing
    assert "EnvWorker.env_list (for environment shards)" in missing
    assert "EmbodiedFSDPActor (for training steps)" in missing
    assert not any(name.startswith(("EnvWorker.init_worker", "EnvWorker.cfg")) for name in missing)
    with pytest.raises(ValueError, match=r"EnvWorker\.env_interact_step") as raised:
        supported_rlinf()
    assert SUPPORTED_VERSIONS in str(raised.value)


def test_observations_of_which_ours_would_lose_a_part_are_not_served(tree):
    schema = tree / "data" / "schema"
    schema.mkdir(parents=True)
    method = 'def prepare_observations(self, obs):\n        return {"states": 1, "sound": 2}\n'
    (schema / "embodied_types.py").write_text(f"class EnvOutput:\n    {method}")
    assert any("it has sound, states" in name for name in read_tree(tree).missing)


@pytest.mark.parametrize("name", TREES)
def test_every_tree_at_hand_has_what_our_classes_need(name):
    assert read_tree(package(name)).missing == ()


@pytest.mark.parametrize(
    ("condition", "found"), [("TYPE_CHECKING", True), ("typing.TYPE_CHECKING", True), ("OTHERWISE", False)]
)
def test_names_that_a_package_loads_at_their_first_use_are_found_by_its_imports_for_type_checkers(
    tree, condition, found
):
    base = tree / "workers" / "base" / "__init__.py"
    base.write_text(BASE.replace("from .worker", f"if {condition}:\n    from .worker"))
    members = Sources(tree).members("rlinf.workers.env.env_worker:EnvWorker")
    assert ("send" in members) == found
    assert members >= {"far", "limit", "cfg"}


def test_a_name_is_imported_from_wherever_this_rlinf_keeps_it():
    found = borrowed.EmbodiedFSDPActor
    assert f"{found.__module__}.{found.__qualname__}" == dotted_name("EmbodiedFSDPActor")
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = borrowed.Nonsense


RENAMED = ("env_list", "eval_prev_done")
"""Attributes of RLinf's env worker that ours count on; a base class does not declare them."""


@pytest.fixture(scope="module")
def renamed(tmp_path_factory):
    """RLinf with some attributes of its env worker renamed, as a refactoring would."""
    found = sources_of("rlinf")
    if found is None:
        pytest.skip("RLinf is not installed")
    root = tmp_path_factory.mktemp("renamed") / "rlinf"
    shutil.copytree(found.root, root, ignore=shutil.ignore_patterns("__pycache__"))
    file = root / "workers" / "env" / "env_worker.py"
    text = file.read_text()
    for name in RENAMED:
        text = text.replace(f"self.{name}", f"self.their_{name}")
    file.write_text(text)
    return root.parent


def said_by(folder, *command):
    path = os.pathsep.join(map(str, (folder, ROOT)))
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "4000"},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode, done.stdout
    return done.stdout + done.stderr


DOCTOR = """
from rlinf_async import cli, doctor
from rlinf_async.observe.check import Check
doctor._machine = list
doctor.installation.check_entry_points = lambda points: Check("entry points", "ok", "left out")
cli.app(["doctor"])
"""
"""The command without its checks of the machine and of all entry points, which take long."""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("-m", "rlinf_async.cli", "explain", "metaworld_ppo_mlp"), id="explain"),
        pytest.param(("-m", "rlinf_async.cli", "train", "metaworld_ppo_mlp"), id="train"),
        pytest.param(("-c", DOCTOR), id="doctor"),
    ],
)
def test_every_command_says_the_same_of_a_tree_that_cannot_serve(renamed, command):
    said = said_by(renamed, *command)
    assert f"RLinf of unknown version in {renamed / 'rlinf'} is not one that rlinf-async can extend" in said
    for name, use in zip(RENAMED, ("environment shards", "evaluation"), strict=True):
        assert f"EnvWorker.{name} (for {use})" in said
    assert "Traceback" not in said


def test_rlinfs_own_script_says_it_too(renamed):
    said = said_by(renamed, "-c", SCRIPT, json.dumps(str(renamed)))
    *_, last = [line for line in said.splitlines() if "is not one that rlinf-async can extend" in line]
    assert "EnvWorker.eval_prev_done (for evaluation)" in last


SCRIPT = """
from rlinf.scheduler import Cluster
from rlinf_async import plugin
from rlinf_async.compose import compose_config
plugin.watch()
cfg = compose_config("metaworld_ppo_mlp", [])
Cluster(cluster_cfg=cfg.cluster)
"""
"""How RLinf's scripts begin, up to where Ray would start."""
