"""RLinf's own Meta-World: 50 tasks, in processes that render."""

import json
import shutil
from ctypes.util import find_library
from pathlib import Path

import pytest

from tests.checkouts import checkout
from tests.runs.conftest import Runner
from tests.runs.test_checkouts import put_on_the_path

pytestmark = [
    pytest.mark.ray,
    pytest.mark.render,
    pytest.mark.skipif(find_library("EGL") is None, reason="no EGL library"),
]
OWN = tuple(
    change
    for part in ("train", "eval")
    for change in (
        f"env.{part}.env_class=null",
        f"+env.{part}.task_suite_name=metaworld_50",
        f"~env.{part}.processes",
    )
)
PICTURES = ("actor.model.image_size=480", "actor.model.patch_size=60", "actor.model.state_dim=4")


def with_tasks(home: Path, place: Path) -> Path:
    """A tree with RLinf's list of tasks, which is in a file that the wheel lacks."""
    folder = Path("rlinf", "envs", "metaworld")
    if (home / folder / "metaworld_config.json").is_file():
        return home
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    shutil.copytree(home, place)
    tasks = {name: name.removesuffix("-v3").replace("-", " ") for name in ALL_V3_ENVIRONMENTS}
    text = json.dumps({"TASK_DESCRIPTIONS": tasks, "ML45": {}})
    (place / folder / "metaworld_config.json").write_text(text)
    return place


def test_every_shard_renders_on_the_gpu_that_its_env_worker_has(runs: Runner, tmp_path: Path) -> None:
    """There is one EGL device here, as on a machine with one GPU, and RLinf asks for one for each stage."""
    put_on_the_path(runs, with_tasks(checkout("rlinf-v0.3"), tmp_path / "rlinf"), tmp_path / "start")
    runs.environment |= {"MUJOCO_GL": "egl", "PYOPENGL_PLATFORM": "egl"}
    run = runs.train(
        "metaworld_ppo_vla",
        *OWN,
        *PICTURES,
        "runner.max_epochs=2",
        "env.train.total_num_envs=2",
        "env.train.max_episode_steps=10",
        "actor.micro_batch_size=2",
        "actor.global_batch_size=4",
        small=False,
    )
    assert run.status == 0, run.output
    assert "2 shards of 1 environments" in run.output
    assert run.summary["trajectories"]["trained"] == 4
