"""What is said of a run one of whose processes was stopped."""

import json

from benchmarks.chaos import silence
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.run_dir import RunDir
from tests.benchmarks.making_victims import started_in, status


def test_only_a_process_that_answers_can_be_stopped(tmp_path):
    with started_in(tmp_path) as process:
        status(tmp_path, {"learner rank 0": process.pid, "coordinator 0": None})
        assert silence.pid_of(tmp_path, "learner rank 0") == process.pid
    assert silence.pid_of(tmp_path, "coordinator 0") is None
    assert silence.pid_of(tmp_path, "simulator") is None


def test_the_time_of_a_return_does_not_count_as_time_until_it_was_found(tmp_path):
    RunDir(tmp_path).record(
        Fault(
            process="env worker 1",
            what="silent",
            error="killed",
            action="started again in its place",
            seconds=9.0,
        )
    )
    (line,) = map(json.loads, (tmp_path / "failures.jsonl").read_text().splitlines())
    said = silence.said_of(tmp_path, status=0, stopped_at=line["time"] - 109.0)
    assert (said["found_s"], said["back_s"], said["process"]) == (100.0, 9.0, "env worker 1")
    earlier = silence.said_of(tmp_path, status=0, stopped_at=line["time"] + 1.0)
    assert earlier["found_s"] is None


def test_passing_is_to_be_found_in_time_and_to_end_as_it_should():
    found = {"found_s": 101.0, "status": 0, "unaccounted": 0}
    assert silence.passed("env worker 1", found)
    assert not silence.passed("env worker 1", found | {"unaccounted": 3})
    assert not silence.passed("env worker 1", found | {"found_s": 121.0})
    assert not silence.passed("env worker 1", found | {"found_s": None})
    assert not silence.passed("learner rank 0", found)
    assert silence.passed("learner rank 0", found | {"status": 1, "unaccounted": None})


def test_what_is_there_is_run_again_only_if_it_is_named(tmp_path, monkeypatch):
    stopped = []

    def stop_one(target):
        stopped.append(target)
        return {"found_s": 1.0, "status": 0, "unaccounted": 0}

    monkeypatch.setattr(silence, "RESULTS_FILE", tmp_path / "silence.json")
    monkeypatch.setattr(silence, "stop_one", stop_one)
    silence.main()
    assert stopped == [*silence.REPLACEABLE_PROCESSES, *silence.ESSENTIAL_PROCESSES]
    stopped.clear()
    silence.main()
    silence.main(["simulator"])
    assert stopped == ["simulator"]
