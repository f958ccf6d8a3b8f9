"""Runs whose processes are killed: what is said of them."""

import json

import pytest

from benchmarks.chaos import __main__ as chaos
from benchmarks.chaos.runs import DEMO_BY_HOST, Outcome, training
from benchmarks.chaos.victims import VICTIM_KINDS
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path):
    steps = [
        {
            "step": step,
            "async/env_steps": 100,
            "async/step_seconds": 50.0 if step <= 3 else 2.0,
            "async/staleness/max": float(step > 1),
            "async/restarts/env": 0,
            "async/restarts/env_worker": float(step == 4),
            "async/restarts/inference": 0,
        }
        for step in range(1, 6)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    books = {"produced": 48, "trained": 40, "in_flight": 1, "refused": {"env worker died": 4}}
    (tmp_path / "summary.json").write_text(json.dumps({"trajectories": books}))
    RunDir(tmp_path).record(
        Fault(process="env worker 0", what="env worker died", error="killed", action="again")
    )
    return tmp_path


def test_a_run_is_what_it_has_written(run_dir):
    found = Outcome.of(run_dir, status=0, killed=["env worker", "simulator", "env worker"])
    assert (found.status, found.hung, found.steps, found.faults, found.staleness) == (0, False, 5, 1, 1.0)
    assert found.env_steps_per_second == 50.0  # the first three steps are not measured
    assert found.unaccounted == 3
    assert found.killed == {"env worker": 2, "simulator": 1}
    assert found.restarts == {"env": 0, "env_worker": 1, "inference": 0}
    line = chaos.table({"one": found.as_dict()}).splitlines()[-1]
    assert line == (
        "| one | 0 | 5 | 50 | 2 env worker, 1 simulator | 1 env_worker | 4 env worker died | 3 | 1 |"
    )


def test_a_run_that_has_written_nothing_is_told_apart_from_one_that_adds_up(tmp_path):
    found = Outcome.of(tmp_path, status=1, killed=[])
    assert (found.unaccounted, found.env_steps_per_second, found.steps) == (None, None, 0)


def test_both_sides_of_a_repetition_come_before_the_next_and_none_twice(tmp_path, monkeypatch, run_dir):
    made = []

    def run(directory, *, host, every_s, seed, **_):
        made.append((host, every_s, seed))
        return Outcome.of(run_dir, status=0, killed=[])

    monkeypatch.setattr(chaos, "RESULTS_FILE", tmp_path / "results.json")
    monkeypatch.setattr(chaos, "run", run)
    for repetitions in (1, 2):
        chaos.main(steps=5, every=7.0, repetitions=repetitions, deadline=1.0, host="rlinf")
    chaos.main(steps=5, every=7.0, repetitions=1, deadline=1.0, host="verl")
    ours = [("rlinf", None, 0), ("rlinf", 7.0, 0), ("rlinf", None, 1), ("rlinf", 7.0, 1)]
    assert made == [*ours, ("verl", None, 0), ("verl", 7.0, 0)]


def test_under_verl_nobody_is_killed_whom_there_is_not(tmp_path):
    command = training(tmp_path / "run", [*DEMO_BY_HOST["verl"].settings, "a=b"], steps=5, host="verl")
    assert command[4:] == [
        *("verl_metaworld_ppo_mlp", "env.workers=2", "vla.inference.ranks=2", "a=b"),
        *("trainer.total_training_steps=5", f"vla.run_dir={tmp_path / 'run'}"),
    ]
    assert DEMO_BY_HOST["verl"].kinds == ("env", "inference")
    assert set(DEMO_BY_HOST["rlinf"].kinds) == set(VICTIM_KINDS)
