"""Runs whose processes are killed: who is killed, and what is said of a run."""

import json
import os
import signal
import subprocess
import sys

import pytest

from benchmarks.chaos import __main__ as chaos
from benchmarks.chaos.outcome import Outcome
from benchmarks.chaos.victims import Killer, Victim, victims
from rlinf_async.observe.failures import record_failure

SIMULATOR = [
    sys.executable,
    "-c",
    "import sys; print('ready', flush=True); sys.stdin.read()",
    "rlinf_async.demo.simulators.child_process",
]
WORKER = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()"


@pytest.fixture
def worker():
    """A process with one child that is a simulator, and has its input and output."""
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, *SIMULATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate()


def status(run_dir, processes, step=5):
    (run_dir / "status.json").write_text(json.dumps({"step": step, "processes": processes}))


def test_env_workers_inference_ranks_and_their_simulators_can_be_killed_and_nobody_else(tmp_path, worker):
    assert victims(tmp_path) == []
    mine = {"pid": os.getpid()}
    status(tmp_path, {"env worker 0": {"pid": worker.pid}, "inference rank 1": mine, "learner rank 0": mine})
    found = victims(tmp_path)
    assert [(victim.kind, victim.name) for victim in found] == [
        ("env worker", "env worker 0"),
        ("simulator", "of env worker 0"),
        ("inference rank", "inference rank 1"),
    ]


def test_a_process_that_does_not_answer_is_left_alone(tmp_path):
    status(tmp_path, {"env worker 0": {}, "inference rank 0": {"pid": None}})
    assert victims(tmp_path) == []


def test_processes_are_killed_once_the_run_has_begun_until_it_has_ended(tmp_path):
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status(tmp_path, {"inference rank 0": {"pid": victim.pid}}, step=3)
    killer = Killer(tmp_path, every_s=0.01, first_step=3, seed=0)
    killer.start()
    assert victim.wait() == -signal.SIGKILL
    killer.stop()
    assert Victim("inference rank", "inference rank 0", victim.pid) in killer.killed


def test_nobody_is_killed_before_the_run_has_trained(tmp_path):
    status(tmp_path, {"inference rank 0": {"pid": os.getpid()}}, step=2)
    killer = Killer(tmp_path, every_s=0.0, first_step=3, seed=0)
    killer.start()
    killer.stop()
    assert killer.killed == []


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
    record_failure(tmp_path, process="env worker 0", what="env worker died", error="killed", action="again")
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

    def run(directory, *, every_s, seed, **_):
        made.append((every_s, seed))
        return Outcome.of(run_dir, status=0, killed=[])

    monkeypatch.setattr(chaos, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(chaos, "run", run)
    for repetitions in (1, 2):
        chaos.main(steps=5, every=7.0, repetitions=repetitions, deadline=1.0)
    assert made == [(None, 0), (7.0, 0), (None, 1), (7.0, 1)]
