"""The report's advice, followed: runs on virtual time, on a machine where nobody waits for a core.

Each piece of advice that a planned run is given is taken, and the run planned again: it must not be slower.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from rlinf_async.lab.plan.job import Job, changed, of_run
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.report.advice import Advice, Facts, advise
from rlinf_async.lab.report.measures import measure
from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.virtual.times import (
    DurationDraws,
    PolicyTimes,
    SimulatorTimes,
    Times,
    TrainingTimes,
    WayTimes,
    WeightTimes,
)

DRAWS = 2
CORES = 64
NOISE = 0.01
"""How much slower a run may be than before: service times are drawn anew where shards are other ones."""
MEETING = {("a costly anchor", "small batches", "cheaper anchor"): 0.02}
"""The same of advice after which shards that nobody holds back any more meet in the queue of inference."""
PLACES = {"env": "env_workers", "rollout": "inference_ranks", "actor": "learner_ranks"}
PLAN = {
    "total_envs": 16,
    "env_workers": 2,
    "inference_ranks": 1,
    "learner_ranks": 1,
    "shards_per_worker": 2,
    "rollout_epochs": 1,
    "group_size": 1,
}


def times(*, decision=0.5, cv=0.3, reset=0.5, tasks=(1.0,), forward=(0.05, 0.005), sample=0.01, score=1 / 3):
    return Times(
        simulators=SimulatorTimes(
            decision=DurationDraws(mean=decision, cv=cv), reset=DurationDraws(mean=reset, cv=0.2), tasks=tasks
        ),
        policy=PolicyTimes(by_size=((1, sum(forward)),), env_s=forward[1]),
        training=TrainingTimes(sample_s=sample, optimizer_step_s=0.1, score_share=score),
        way=WayTimes(request_s=0.005, put_s=0.02),
        weights=WeightTimes(copy_s=0.05, send_s=0.1, load_s=0.02),
        decision_steps=5,
    )


WORK = {
    "balanced": times(),
    "slow inference": times(decision=0.4, forward=(0.1, 0.01)),
    "simulators with a long tail": times(decision=1.0, cv=1.0),
    "tasks that differ": times(tasks=(0.5, 1.0, 1.0, 2.0)),
    "slow resets": times(reset=4.0),
    "inference by the sample": times(decision=0.1, forward=(0.1, 0.02)),
    "inference by the pass": times(decision=0.1, forward=(0.3, 0.0)),
    "slow training": times(sample=0.05),
    "a costly anchor": times(sample=0.02, score=1.0),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "train": {"mode": "train"},
    "rollout": {"mode": "rollout"},
    "streamer": {"mode": "streamer"},
    "full": {"mode": "full"},
    "no lag": {"mode": "full", "train": {"max_staleness": 0}},
    "small batches": {"mode": "full", "rollout": {"max_batch_size": 4}},
    "waiting for company": {"mode": "full", "rollout": {"max_wait_ms": 200}},
    "deferred": {"mode": "full", "advanced": {"normalization": "deferred"}},
    "deferred, no lag": {
        "mode": "full",
        "advanced": {"normalization": "deferred"},
        "train": {"max_staleness": 0},
    },
    "whole batches": {"mode": "full", "streamer": {"enabled": False}},
}


@dataclass
class Followed:
    """A piece of advice, and what became of the run that took it."""

    work: str
    setting: str
    advice: Advice
    gain: float

    def __str__(self) -> str:
        change = f"{self.advice.setting}={self.advice.after}"
        return f"{self.work}, {self.setting}: {self.advice.rule}, {change}: {self.gain:.3f} times"


@cache
def followed(work: str) -> list[Followed]:
    """All advice that is given where work is such, in any setting."""
    with TemporaryDirectory() as place:
        return [each for setting in SETTINGS for each in follow(work, setting, Path(place) / setting)]


def follow(work: str, setting: str, directory: Path) -> Iterator[Followed]:
    lasting = WORK[work]
    job, config = planned(SETTINGS[setting])
    before = foresee(work, job.settings, lasting, draws=DRAWS, run_dir=directory).steps_per_s.middle
    for advice in advised(directory, config):
        after = foresee(work, changed(job, [override(advice)]).settings, lasting, draws=DRAWS)
        yield Followed(work, setting, advice, after.steps_per_s.middle / before)


def planned(block: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
    """A job of eight decisions in 16 environments, and its config."""
    config = {
        "async": block,
        "actor": {"global_batch_size": 128, "micro_batch_size": 16, "model": {"num_action_chunks": 5}},
        "algorithm": {"adv_type": "gae", "update_epoch": 1},
        "cluster": {"num_nodes": 1, "component_placement": {"env": "0-1", "rollout": "0", "actor": "0"}},
        "env": {"train": {"env_type": "libero"}},
    }
    rollout = block["mode"] in ("full", "rollout")
    facts = {
        "plan": {**PLAN, "shards_per_worker": PLAN["shards_per_worker"] if rollout else 1},
        "horizon": 8,
        "steps": 12,
        "max_batch_size": block.get("rollout", {}).get("max_batch_size", 16),
        "micro_batch_size": 16,
    }
    return of_run(facts, config), config


def advised(directory: Path, config: dict[str, Any]) -> list[Advice]:
    """What the report of a planned run says, as if its machine had many cores and accelerators."""
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    file = directory / "run.json"
    facts = json.loads(file.read_text()) | {"cores": CORES, "versions": {"torch": "2.6.0+cu124"}}
    file.write_text(json.dumps(facts))
    run = RunFiles.read(directory)
    return advise(Facts.of(run, measure(run)))


def override(advice: Advice) -> str:
    """What `changed` understands: placement is how many there are of something."""
    _, _, part = advice.setting.rpartition("component_placement.")
    if part in PLACES:
        return f"plan.{PLACES[part]}={advice.after.split()[0]}"
    return f"{advice.setting}={advice.after}"


@pytest.mark.nightly
@pytest.mark.parametrize("work", WORK)
def test_a_run_that_follows_its_advice_is_not_slower(work):
    slower = [
        str(each)
        for each in followed(work)
        if each.gain < 1 - MEETING.get((each.work, each.setting, each.advice.rule), NOISE)
    ]
    assert slower == []


@pytest.mark.nightly  # it needs the advice of all
def test_all_advice_that_can_be_planned_was_given_and_followed():
    given = {each.advice.rule for work in WORK for each in followed(work)}
    assert given >= {
        "overlap training",
        "split rollouts",
        "more simulators",
        "more inference",
        "cheaper anchor",
        "more learners",
        "stream",
        "stop deferring",
        "smaller shards",
        "shorter queue",
    }
