"""Who can be killed in a run."""

import os

from rlinf_async.experiments.chaos.victims import simulators_of, victims
from tests.experiments.chaos.making import CHILD, PARENT, started, status


def test_env_workers_inference_ranks_and_their_simulators_can_be_killed_and_nobody_else(tmp_path):
    assert victims(tmp_path) == []
    with started([*PARENT, *CHILD]) as worker:
        mine = os.getpid()
        status(tmp_path, {"env worker 0": worker.pid, "inference rank 1": mine, "learner rank 0": mine})
        found = victims(tmp_path)
    assert [(victim.kind, victim.name) for victim in found] == [
        ("env worker", "env worker 0"),
        ("simulator", "of env worker 0"),
        ("inference rank", "inference rank 1"),
    ]


def test_what_python_starts_for_itself_is_no_simulator():
    with started([*PARENT, *CHILD, "from multiprocessing.resource_tracker import main;main(5)"]) as worker:
        assert simulators_of(worker.pid) == []


def test_a_process_that_does_not_answer_is_left_alone(tmp_path):
    status(tmp_path, {"env worker 0": None})
    assert victims(tmp_path) == []


def test_a_process_of_another_machine_is_left_alone_as_its_number_is_somebody_elses_here(tmp_path):
    status(tmp_path, {"inference rank 0": os.getpid()}, on="another")
    assert victims(tmp_path) == []


def test_a_process_that_has_gone_has_no_simulators():
    with started(CHILD) as process:
        pass
    assert simulators_of(process.pid) == []
