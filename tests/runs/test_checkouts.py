"""RLinf as its users have it: a checkout on PYTHONPATH, not installed, and its unmodified scripts.

Where v0.3 is put together of its wheel, the scripts are ours, with the calls of RLinf's: tests/checkouts.py.
"""

import json
import os
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from tests.checkouts import EMBODIED, RELEASED, TREES, checkout
from tests.runs.conftest import Runner
from tests.runs.test_entry_script import run_script, users_config

ROOT = Path(__file__).parents[2]
BESIDE = Path(sys.prefix) / "scripts"
"""Where `make setup-scripts` puts torchvision."""
SCRIPTS_NEED = ("pandas", "peft", "torchvision")
"""What RLinf's scripts import beside RLinf's own needs, for its reward models."""
absent = [name for name in SCRIPTS_NEED if not (find_spec(name) or (BESIDE / name).is_dir())]
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        bool(absent),
        reason=f"RLinf's scripts import {', '.join(absent)}: make setup setup-scripts installs them",
    ),
]
NOT_INSTALLED = """
import importlib.metadata as metadata
find = metadata.Distribution.from_name.__func__
def from_name(cls, name):
    if name == "rlinf":
        raise metadata.PackageNotFoundError(name)
    return find(cls, name)
metadata.Distribution.from_name = classmethod(from_name)
"""
"""Python reads it at its start: there is no distribution `rlinf`, as for users of a checkout."""
PPO, GRPO = "metaworld_ppo_mlp", "metaworld_grpo_mlp"
OF = {PPO: (), GRPO: ("algorithm.group_size=4", "env.eval.group_size=1")}
MODES = ("full", "train", "rollout", "streamer")
ALWAYS = {(RELEASED, PPO, "full"), ("rlinf-pr1365", GRPO, "full")}
"""What is run before every merge; so is RLinf's YAML for ManiSkill, and GRPO by our own command."""
RUNS = [
    pytest.param(*case, marks=pytest.mark.every_python if case in ALWAYS else pytest.mark.nightly)
    for case in product(TREES, OF, MODES)
]
OPERATORS = """
import sys
from importlib.abc import MetaPathFinder
class Declaring(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch
            sys.torchvision_library = library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
sys.meta_path.insert(0, Declaring())
"""
"""What torchvision's build for CUDA does not find beside torch for CPU, and nothing calls."""
ASYNC_PPO = (
    "algorithm.loss_type=decoupled_actor_critic",
    "+algorithm.staleness_threshold=1",
    "+algorithm.behave_weight_threshold=2.0",
)


@pytest.fixture
def tree(request: pytest.FixtureRequest, runs: Runner, tmp_path: Path) -> Path:
    home = checkout(request.param)
    put_on_the_path(runs, home, tmp_path / "start")
    return home


def put_on_the_path(runs: Runner, home: Path, start: Path) -> None:
    """Let runs find RLinf in `home` alone; `start` becomes a folder for what Python reads first."""
    start.mkdir()
    beside = (BESIDE,) if find_spec("torchvision") is None else ()
    (start / "sitecustomize.py").write_text(NOT_INSTALLED + (OPERATORS if beside else ""))
    places = (start, home, ROOT, ROOT / "rlinf_async" / "_hydra", *beside)
    runs.environment["PYTHONPATH"] = os.pathsep.join(map(str, places))
    runs.environment["EMBODIED_PATH"] = str(home / EMBODIED)


@pytest.mark.parametrize(("tree", "config", "mode"), RUNS, indirect=["tree"])
def test_rlinfs_own_script_runs_asynchronously_by_one_word(
    tree: Path, config: str, mode: str, runs: Runner, tmp_path: Path
) -> None:
    script = tree / EMBODIED / "train_embodied_agent.py"
    theirs = users_config(tmp_path, "~async", *OF[config], config=config)
    status, output = run_script(runs, script, theirs, f"+async.mode={mode}")
    assert status == 0, output
    assert "produced 16 = trained 16 + in flight 0 + 0 refused" in output
    versions = json.loads((tmp_path / "run" / "run.json").read_text())["versions"]
    assert f'version = "{versions["rlinf"]}"' in (tree / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    "tree",
    ["rlinf-v0.3", "rlinf-main", pytest.param("rlinf-pr1365", marks=pytest.mark.nightly)],
    indirect=True,
)
def test_rlinfs_asynchronous_script_runs_our_loops(tree: Path, runs: Runner, tmp_path: Path) -> None:
    script = tree / EMBODIED / "train_async.py"
    status, output = run_script(runs, script, users_config(tmp_path, *ASYNC_PPO))
    assert status == 0, output
    assert "levels train + rollout + streamer" in output
    assert "produced 16 = trained 16 + in flight 0 + 0 refused" in output


@pytest.mark.nightly  # our own command is asked the same: tests/runs/test_failures.py
@pytest.mark.parametrize("tree", ["rlinf-v0.3", "rlinf-main"], indirect=True)
def test_a_run_that_fails_says_so_by_its_exit_status(tree: Path, runs: Runner, tmp_path: Path) -> None:
    script = tree / EMBODIED / "train_embodied_agent.py"
    del runs.environment["HYDRA_FULL_ERROR"]  # with it, RLinf's main branch notices the failure by itself
    status, output = run_script(runs, script, users_config(tmp_path), "env.train.task_name=brew-coffee-v3")
    assert status == 1, output
    assert "brew-coffee-v3" in output
