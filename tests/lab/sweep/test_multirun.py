"""Hydra's own `--multirun` of an RLinf script: every job gets the classes that its config asks for."""

import subprocess
import sys

import pytest
from omegaconf import OmegaConf

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf_async.compose import compose_config

SCRIPT = """
import hydra
from rlinf.runners.embodied_runner import EmbodiedRunner
from rlinf.workers.env.env_worker import EnvWorker


@hydra.main(version_base="1.1", config_path="config", config_name="some_config")
def main(cfg):
    group = EnvWorker.create_group(cfg)
    runner = EmbodiedRunner.__new__(EmbodiedRunner, cfg=cfg)
    print("JOB", cfg.runner.max_epochs, group.worker_cls_name, type(runner).__name__)


if __name__ == "__main__":
    main()
"""
"""Wired like RLinf's scripts, but nothing is started: the classes say what would be."""


@pytest.mark.nightly
@pytest.mark.parametrize("group", ["+async=off,full,train", "+async.mode=off,full,train"])
def test_every_job_of_a_multirun_is_synchronous_or_not_by_its_own_config(tmp_path, group):
    cfg = compose_config("metaworld_ppo_mlp", ["~async", "~warm_start"])
    OmegaConf.save(cfg, tmp_path / "users.yaml")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [
            *(sys.executable, "script.py", "--multirun"),
            *("--config-path", str(tmp_path), "--config-name", "users"),
            *(group, "runner.max_epochs=2,3"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    jobs = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("JOB")]
    ours, theirs = ("ShardedEnvWorker", "AsyncEmbodiedRunner"), ("EnvWorker", "EmbodiedRunner")
    assert jobs == [
        *(["2", *theirs], ["3", *theirs]),
        *(["2", *ours], ["3", *ours]),
        *(["2", *ours], ["3", *ours]),
    ]
