"""RLinf's unmodified entry script runs asynchronously when its config asks for it, and only then."""

import os
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlinf_async.compose import compose_config
from rlinf_async.lab.sweep.steps import read_scalars
from tests.runs.conftest import SMALL, Runner

pytestmark = pytest.mark.ray
SCRIPT = Path(__file__).with_name("entry_script.py")
STOCK = "CLASSES EnvWorker MultiStepRolloutWorker EmbodiedFSDPActor EmbodiedRunner"
OURS = "CLASSES ShardedEnvWorker BatchingRolloutWorker StreamingActorWorker AsyncEmbodiedRunner"


def users_config(directory: Path, *overrides: str, config: str = "metaworld_ppo_mlp") -> Path:
    """A self-contained YAML as a user of RLinf has it, with an environment of this package in it."""
    cfg = compose_config(config, [*SMALL, "runner.max_epochs=2", *overrides])
    cfg.runner.logger.log_path = str(directory / "run")
    OmegaConf.save(cfg, directory / "users.yaml")
    return directory


def run_script(runs: Runner, script: Path, directory: Path, *overrides: str) -> tuple[int, str]:
    config = ("--config-path", str(directory), "--config-name", "users")
    process = runs.start(sys.executable, str(script), *config, "hydra.run.dir=.", *overrides)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


@pytest.mark.nightly  # RLinf's own script in a checkout is turned so as well: tests/runs/test_checkouts.py
def test_the_command_line_turns_a_script_without_a_block_asynchronous(runs: Runner, tmp_path: Path) -> None:
    status, output = run_script(runs, SCRIPT, users_config(tmp_path, "~async"), "+async.mode=full")
    assert status == 0, output
    assert OURS in output
    assert "produced 16 = trained 16 + in flight 0 + 0 refused" in output


@pytest.mark.nightly  # nothing of ours is even loaded then: tests/test_plugin.py; RLinf alone: test_stock.py
def test_without_the_block_nothing_of_rlinf_is_replaced(runs: Runner, tmp_path: Path) -> None:
    status, output = run_script(runs, SCRIPT, users_config(tmp_path, "~async"))
    assert status == 0, output
    assert STOCK in output
    assert "Metric Table" in output


def test_a_block_in_the_yaml_runs_a_third_partys_extension_and_env_worker_asynchronously(
    runs: Runner, tmp_path: Path
) -> None:
    (tmp_path / "marks").mkdir()
    runs.environment |= {
        "RLINF_EXT_MODULE": "tests.runs.their_extension",
        "THEIR_MARKS": str(tmp_path / "marks"),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    theirs = users_config(tmp_path, "actor.model.model_type=their_policy")
    status, output = run_script(runs, SCRIPT.with_name("their_script.py"), theirs)
    assert status == 0, output
    assert OURS.replace("ShardedEnvWorker", "AsyncCalibratedEnvWorker") in output
    assert "produced 16 = trained 16 + in flight 0 + 0 refused" in output
    assert {path.name for path in (tmp_path / "marks").iterdir()} == {"environment", "model", "worker"}


def test_another_projects_engine_acts_by_the_version_that_its_samples_bear(
    runs: Runner, tmp_path: Path
) -> None:
    runs.environment |= {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
    }
    theirs = users_config(tmp_path, "weight_syncer.type=bucket", "runner.max_epochs=4")
    status, output = run_script(runs, SCRIPT.with_name("own_engine_script.py"), theirs)
    assert status == 0, output
    assert OURS.replace("BatchingRolloutWorker", "AsyncOwnEngineWorker") in output
    assert "produced 32 = trained 32 + in flight 0 + 0 refused" in output
    # The learner scores each sample by its weights of the version that the sample bears, as the engine has.
    scalars = read_scalars(tmp_path / "run")
    for name, values in scalars.items():
        if name.startswith("train/mismatch/") and name.endswith("/abs_log"):
            assert max(values.values()) < 1e-5, name
    # Without a lag every version would do.
    assert max(scalars["train/staleness/lag_1/abs_log"].values()) > 0.01
