"""Who can be killed in a run."""

import json
import os
import sys

import pytest

from benchmarks.chaos.victims import Victim, simulators_of, victims
from rlinf_async.observe.spans import identity
from rlinf_async.wire.memory import machine
from tests.benchmarks.making_victims import CHILD, PARENT, started, started_in, status


def test_env_workers_inference_ranks_and_their_simulators_can_be_killed_and_nobody_else(tmp_path):
    assert victims(tmp_path) == []
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with started_in(tmp_path, *silent) as worker, started_in(tmp_path) as rank:
        said = {"env worker 0": worker.pid, "inference rank 1": rank.pid, "learner rank 0": rank.pid}
        status(tmp_path, said)
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


@pytest.mark.parametrize(
    "number", [-1, 0, 1, "own", "parent", 2**70, True, 4.0, "7", None, [], 10**6], ids=repr
)
def test_a_number_that_a_file_names_is_not_killed_for_that(tmp_path, number):
    pid = {"own": os.getpid(), "parent": os.getppid()}.get(number, number) if number != [] else number
    (tmp_path / "stacks").mkdir()
    said = {"pid": pid, "machine": machine(), "open": [], "ended": 0, **(identity(os.getpid()) or {})}
    said |= (identity(pid) or {}) if isinstance(pid, int) and 0 < pid < 2**30 else {}
    record = {"step": 5, "total": 9, "driver": 1, "still_s": 0.0, "time": 0.0}
    record["processes"] = {"inference rank 0": said, "env worker 0": said}
    (tmp_path / "status.json").write_text(json.dumps(record))
    assert victims(tmp_path) == []


def test_a_process_of_another_run_or_of_none_is_left_alone(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    with started_in(other) as process, started(CHILD) as stranger:
        for pid in (process.pid, stranger.pid):
            status(one, {"inference rank 0": pid})
            assert victims(one) == []
        status(other, {"inference rank 0": process.pid})
        assert [victim.pid for victim in victims(other)] == [process.pid]


@pytest.mark.parametrize("says", [{"started": 1}, {"command": "/bin/sh"}, {"started": None}], ids=repr)
def test_a_process_that_has_got_the_number_later_is_left_alone(tmp_path, says):
    with started_in(tmp_path) as process:
        status(tmp_path, {"inference rank 0": process.pid}, says=says)
        assert victims(tmp_path) == []
        (victim,) = [Victim("inference rank", "inference rank 0", process.pid, started=1)]
        assert not victim.kill()
        assert process.poll() is None


def test_a_process_that_has_gone_has_no_simulators():
    with started(CHILD) as process:
        pass
    assert simulators_of(process.pid) == []
