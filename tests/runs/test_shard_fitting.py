"""Fast decisions lead to fewer shards, which a run that goes on keeps."""

import json

import pytest

from tests.runs.conftest import COMMAND, Runner

pytestmark = pytest.mark.ray

RUN = (
    *("train", "-n", "bench/emulated", "async.mode=full"),
    *("env.train.total_num_envs=16", "env.train.max_episode_steps=160", "env.train.service.decision_s=0.001"),
    *(
        "env.train.service.cv=0.0",
        "env.train.service.reset_s=0.001",
        "actor.model.service.act_fixed_s=0.0005",
    ),
    *("actor.model.service.act_sample_s=0.0", "actor.model.service.train_sample_s=0.0001"),
    *("actor.micro_batch_size=16", "actor.global_batch_size=128", "algorithm.update_epoch=1"),
    *("actor.model.service.weights_mb=1", "runner.save_interval=4"),
)


def test_a_run_with_fast_decisions_joins_its_shards_once_and_keeps_them_when_it_is_resumed(runs: Runner):
    directory = runs.directory / "run"
    place = f"runner.logger.log_path={directory}"
    output = ended(runs, *RUN, place, "runner.max_epochs=8")
    facts = json.loads((directory / "run.json").read_text())
    shards = facts["plan"]["shards_per_worker"]
    assert facts["shard_fit"]["before"] == 16
    assert facts["shard_fit"]["shards"] == shards < 16
    assert f"{shards} shards per env worker follow the 16" in " ".join(output.split())
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["trajectories"] == {"produced": 128, "trained": 128, "in_flight": 0, "refused": {}}
    resumed = ended(runs, *RUN, place, "runner.max_epochs=12", "++runner.resume_dir=auto")
    facts = json.loads((directory / "run.json").read_text())
    assert facts["plan"]["shards_per_worker"] == shards
    assert "shard_fit" not in facts
    assert "are lost" not in resumed
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["trajectories"] == {"produced": 192, "trained": 192, "in_flight": 0, "refused": {}}


def ended(runs: Runner, *command: str) -> str:
    process = runs.start(*COMMAND, *command)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    return output
