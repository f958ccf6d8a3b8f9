"""Fast decisions lead to fewer shards, which a run that goes on keeps."""

import json

import pytest

from tests.runs.conftest import Run

pytestmark = pytest.mark.ray

RUN = (
    *("async.mode=full", "env.train.total_num_envs=16", "env.train.max_episode_steps=160"),
    *("env.train.service.decision_s=0.001", "env.train.service.cv=0.0", "env.train.service.reset_s=0.001"),
    *("actor.model.service.act_fixed_s=0.0005", "actor.model.service.act_sample_s=0.0"),
    *("actor.model.service.train_sample_s=0.0001", "actor.model.service.weights_mb=1"),
    *("actor.micro_batch_size=16", "actor.global_batch_size=128", "algorithm.update_epoch=1"),
    "runner.save_interval=4",
)
SAVED = "bench_emulated/checkpoints/global_step_8"


@pytest.mark.shared_run(
    ("bench/emulated", (*RUN, "runner.max_epochs=8")),
    ("bench/emulated", (*RUN, "runner.max_epochs=12", f"++runner.resume_dir='{{run-0}}/{SAVED}'")),
)
def test_a_run_with_fast_decisions_joins_its_shards_and_keeps_them_when_it_is_resumed(
    ended: list[Run],
) -> None:
    first, resumed = ended
    facts = json.loads((first.directory / "run.json").read_text())
    shards = facts["plan"]["shards_per_worker"]
    fits = facts["shard_fits"]
    assert fits[0]["before"] == 16
    assert shards == fits[-1]["shards"] < 16
    said = " ".join(first.output.split())
    changes = [(fit["shards"], fit["before"]) for fit in fits if fit["shards"] != fit["before"]]
    assert 1 <= len(changes) <= 2
    for now, before in changes:
        assert f"{now} shards per env worker follow the {before}" in said
    assert first.summary["trajectories"] == {"produced": 128, "trained": 128, "in_flight": 0, "refused": {}}
    facts = json.loads((resumed.directory / "run.json").read_text())
    assert facts["plan"]["shards_per_worker"] == shards
    assert "shard_fits" not in facts
    assert "are lost" not in resumed.output
    assert resumed.summary["trajectories"] == {"produced": 192, "trained": 192, "in_flight": 0, "refused": {}}
