"""Fast decisions lead to fewer shards, which a run that goes on keeps; evaluation has the same shards."""

import json

import pytest

pytest.importorskip("verl", reason="veRL is not installed")

from tests.runs.conftest import COMMAND
from tests.runs_verl.conftest import ACTOR

pytestmark = pytest.mark.ray

RUN = (
    *("train", "-n", "bench/verl_emulated", "async.mode=full"),
    *("env.train.total_num_envs=16", "env.train.max_episode_steps=160", "data.train_batch_size=16"),
    *("env.train.service.decision_s=0.001", "env.train.service.cv=0.0", "env.train.service.reset_s=0.001"),
    *("vla.model.service.act_fixed_s=0.0005", "vla.model.service.act_sample_s=0.0"),
    *("vla.model.service.train_sample_s=0.0001", "vla.model.service.weights_mb=1"),
    *(f"{ACTOR}.ppo_mini_batch_size=8", f"{ACTOR}.ppo_micro_batch_size_per_gpu=16", f"{ACTOR}.ppo_epochs=1"),
    "trainer.save_freq=4",
)


def test_a_run_with_fast_decisions_joins_its_shards_once_and_keeps_them_when_it_is_resumed(runs):
    directory = runs.directory / "run"
    place = f"vla.run_dir={directory}"
    ended(runs, *RUN, place, "trainer.total_training_steps=8")
    facts = json.loads((directory / "run.json").read_text())
    shards = facts["plan"]["shards_per_worker"]
    assert facts["shard_fit"]["before"] == 16
    assert facts["shard_fit"]["shards"] == shards < 16
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["trajectories"] == {"produced": 128, "trained": 128, "in_flight": 0, "refused": {}}
    resumed = ended(runs, *RUN, place, "trainer.total_training_steps=12", "trainer.resume_mode=auto")
    facts = json.loads((directory / "run.json").read_text())
    assert facts["plan"]["shards_per_worker"] == shards
    assert "shard_fit" not in facts
    assert "are lost" not in resumed


def ended(runs, *command):
    process = runs.start(*COMMAND, *command)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    return output
