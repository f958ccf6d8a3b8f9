"""ManiSkill through RLinf's own environment, with physics on the CPU."""

import importlib.util
import sys
from pathlib import Path

import pytest

from rlinf_async.lab.demo.simulators.vulkan import DRIVERS_VARIABLE, SOFTWARE_DRIVER, check_vulkan
from tests.checkouts import EMBODIED, checkout
from tests.runs.conftest import Runner
from tests.runs.test_checkouts import absent, put_on_the_path
from tests.runs.test_entry_script import SCRIPT

pytestmark = [pytest.mark.ray, pytest.mark.maniskill]
SMALL_ON_THE_CPU = (
    "actor.fsdp_config.strategy=fsdp2",
    "+actor.fsdp_config.wrap_policy={no_split_names:[]}",
    "rollout.enable_torch_compile=false",
    *(
        f"++env.{part}.{key}"
        for part in ("train", "eval")
        for key in (
            "init_params.sim_backend=cpu",
            "init_params.render_backend=none",
            "init_params.control_mode=pd_joint_delta_pos",
            "video_cfg.save_video=false",
            "total_num_envs=2",
            "max_episode_steps=10",
            "max_steps_per_rollout_epoch=10",
        )
    ),
    "algorithm.update_epoch=2",
    "actor.micro_batch_size=5",
    "actor.global_batch_size=10",
)
"""What RLinf's own YAML needs on a machine without a GPU, and what makes a run of it short."""


@pytest.fixture
def maniskill(runs: Runner) -> Runner:
    """Runs that find a Vulkan driver: that of the system, or one that computes on the CPU."""
    if importlib.util.find_spec("mani_skill") is None:
        pytest.skip("the package mani_skill is not installed (see the `maniskill` extra)")
    found = check_vulkan()
    if found.status != "ok":
        if not SOFTWARE_DRIVER.is_file():
            pytest.skip(f"{found.detail}; {found.mend}")
        runs.environment[DRIVERS_VARIABLE] = str(SOFTWARE_DRIVER)
    return runs


@pytest.mark.nightly  # RLinf's own YAML trains and is evaluated in full mode as well
def test_maniskill_trains_and_is_evaluated_in_full_mode(maniskill: Runner) -> None:
    run = maniskill.train(
        "maniskill_ppo_mlp",
        "runner.max_epochs=4",
        "runner.val_check_interval=2",
        "env.train.total_num_envs=2",
        "env.train.max_episode_steps=10",
        "actor.micro_batch_size=5",
        "actor.global_batch_size=10",
        "algorithm.update_epoch=2",
        small=False,
    )
    assert run.status == 0, run.output
    assert "2 shards of 1 environments" in run.output
    assert run.summary["trajectories"] == {"produced": 8, "trained": 8, "in_flight": 0, "refused": {}}
    assert run.summary["staleness"]["max"] <= 1
    assert [line["step"] for line in run.metrics if "eval/success_once" in line] == [2, 4]
    assert run.metrics[-1]["train/actor/grad_norm"] > 0


@pytest.mark.parametrize("tree", ["rlinf-v0.3", "rlinf-main"])
def test_rlinfs_own_yaml_runs_asynchronously(tree: str, maniskill: Runner, tmp_path: Path) -> None:
    home = checkout(tree)
    embodied = home / EMBODIED
    put_on_the_path(maniskill, home, tmp_path / "start")
    # RLinf's unmodified script, or its twin where what its reward models import is not installed.
    script = SCRIPT if absent else embodied / "train_embodied_agent.py"
    config = ("--config-path", str(embodied / "config"), "--config-name", "maniskill_ppo_mlp")
    process = maniskill.start(
        sys.executable,
        str(script),
        *config,
        *SMALL_ON_THE_CPU,
        f"runner.logger.log_path={tmp_path / 'run'}",
        "runner.max_epochs=3",
        "runner.val_check_interval=3",
        "+async.mode=full",
    )
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "2 shards of 1 environments" in output
    assert "produced 6 = trained 6 + in flight 0 + 0 refused" in output
