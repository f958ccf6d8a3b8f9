"""A job that is planned in milliseconds, and the directory that its run would leave."""

import json

import yaml

from rlinf_async.lab.plan.job import of_run
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.times import (
    DurationDraws,
    PolicyTimes,
    SimulatorTimes,
    Times,
    TrainingTimes,
    WayTimes,
    WeightTimes,
)

FACTS = {
    "plan": {
        "total_envs": 8,
        "env_workers": 1,
        "inference_ranks": 1,
        "learner_ranks": 1,
        "shards_per_worker": 8,
        "rollout_epochs": 1,
        "group_size": 1,
    },
    "horizon": 6,
    "steps": 10,
    "max_batch_size": 8,
    "micro_batch_size": 12,
}
CONFIG = {
    "async": {"mode": "full"},
    "actor": {"global_batch_size": 48, "model": {"num_action_chunks": 5}},
    "algorithm": {"adv_type": "gae", "update_epoch": 1},
    "env": {"train": {"env_type": "libero"}},
    "cluster": {"component_placement": {"actor,env,rollout": "all"}},
}


def job(config=None, **facts):
    return of_run({**FACTS, **facts}, {**CONFIG, **(config or {})})


def times(**more):
    return Times(
        simulators=SimulatorTimes(
            decision=DurationDraws(mean=0.5, cv=0.3),
            reset=DurationDraws(mean=0.75, cv=0.2),
            tasks=(0.75, 1.0, 1.25, 1.0),
        ),
        policy=PolicyTimes(by_size=((1, 0.0390625),), env_s=0.0078125),
        **{"training": TrainingTimes(sample_s=0.0625, optimizer_step_s=0.125, batch_s=0.25)} | more,
        way=WayTimes(request_s=0.015625, put_s=0.0625),
        weights=WeightTimes(copy_s=0.125, send_s=0.25, load_s=0.0625),
        decision_steps=5,
    )


def slow_down(run, times):
    """Let every step of a run seem to have taken so many times as long."""
    file, name = run / "metrics.jsonl", "async/step_seconds"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps({**line, name: times * line[name]}) + "\n" for line in lines))


def left_by(directory, lasting=None, config=None):
    """The records of a run of `job(config)` whose work has lasted so long."""
    predict(job(config).settings, lasting or times(), run_dir=directory)
    (directory / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **(config or {})}))
    facts = json.loads((directory / "run.json").read_text())
    assert facts["plan"] == {**FACTS["plan"], "kept_piece": None}
    return directory
