import json
from multiprocessing import Process

import pytest

from rlinf_async.core.failures import frames_of, in_words
from rlinf_async.observe import run_files
from rlinf_async.observe.events import FaultCounts
from rlinf_async.observe.faults import Fault
from rlinf_async.observe.reading.faults import FaultReader, count_faults, read_faults
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.run_files import LONGEST_ERROR, SHORT_ERROR


def record(run_dir, **facts):
    said = {"process": "env worker 0", "what": "env failed", "error": "ValueError: x", "action": "built anew"}
    RunDir(run_dir).record(Fault(**{**said, **facts}))


def test_a_fault_is_read_as_it_was_recorded_without_what_nobody_knows(tmp_path):
    record(tmp_path, shard=3, lost="a rollout for batch 2", seconds=1.23456, trace="Traceback ...")
    record(tmp_path, what="silent", process="inference rank 1")
    first, second = read_faults(tmp_path)
    assert first.time <= second.time
    assert first.as_dict() == {
        "time": first.time,
        "process": "env worker 0",
        "what": "env failed",
        "shard": 3,
        "error": "ValueError: x",
        "action": "built anew",
        "lost": "a rollout for batch 2",
        "seconds": 1.235,
        "trace": "Traceback ...",
    }
    assert second.as_dict() == {
        "time": second.time,
        "process": "inference rank 1",
        "what": "silent",
        "error": "ValueError: x",
        "action": "built anew",
    }


def test_of_a_long_error_its_beginning_is_kept_and_of_a_long_trace_its_end(tmp_path):
    record(tmp_path, error="first" + "x" * 100_000, trace="y" * 100_000 + "last")
    (fault,) = read_faults(tmp_path)
    assert fault.error.startswith("first")
    assert len(fault.error) == LONGEST_ERROR
    assert fault.trace.endswith("last")
    assert len(fault.trace) < 10_000


def test_a_run_without_faults_has_none_and_damaged_lines_are_left_out(tmp_path):
    assert read_faults(tmp_path) == []
    RunDir(tmp_path).failures.write_text('[1]\n{"what": "something else"}\n{"what": "env fai')
    assert read_faults(tmp_path) == []


def _record_many(run_dir, process):
    for _ in range(200):
        record(run_dir, process=process, trace="z" * 3000)


def test_processes_record_in_one_file_and_no_line_is_torn(tmp_path):
    processes = [Process(target=_record_many, args=(tmp_path, f"env worker {rank}")) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = RunDir(tmp_path).failures.read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 600


def test_what_cannot_be_recorded_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="a fault of env worker 0 is not in the record"):
        record(tmp_path / "gone")


def test_very_many_faults_are_all_counted_and_the_later_ones_are_short(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "WHOLE_RECORD_BYTES", 10_000)
    for _ in range(100):
        record(tmp_path, error="x" * 1000, trace="y" * 1000, seconds=0.5)
    faults = read_faults(tmp_path)
    whole = [fault for fault in faults if fault.trace is not None]
    assert 4 < len(whole) < 10
    assert faults[: len(whole)] == whole
    assert {len(fault.error) for fault in faults[len(whole) :]} == {SHORT_ERROR}
    assert count_faults(tmp_path).kinds == {"env failed": 100}
    assert count_faults(tmp_path).seconds == 50.0


def test_a_record_that_is_full_takes_no_fault_and_is_still_read(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files, "MAX_RECORD_BYTES", 1_000)
    record(tmp_path, trace="y" * 1_500)
    size = RunDir(tmp_path).failures.stat().st_size
    with pytest.warns(UserWarning, match="a fault of env worker 0 is not in the record .* 1,000 bytes"):
        record(tmp_path)
    assert RunDir(tmp_path).failures.stat().st_size == size
    assert len(read_faults(tmp_path)) == 1


def test_a_run_that_begins_anew_puts_the_older_faults_aside(tmp_path):
    record(tmp_path)
    RunDir(tmp_path).begin({}, title="", versions={}, fresh=False)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    notices = []
    RunDir(tmp_path).set_aside(say=notices.append)
    place = tmp_path / "earlier" / "1"
    assert notices == [f"the files of an earlier run in {tmp_path} are in {place} now"]
    assert len(read_faults(place)) == 1
    assert read_faults(tmp_path) == []
    record(tmp_path)
    RunDir(tmp_path).begin({}, title="", versions={})
    assert read_faults(tmp_path) == []


def raise_with_a_cause():
    try:
        raise KeyError("door")
    except KeyError as cause:
        raise RuntimeError("the simulator died") from cause


def test_an_error_is_named_with_its_causes():
    with pytest.raises(RuntimeError) as raised:
        raise_with_a_cause()
    assert in_words(raised.value) == "RuntimeError: the simulator died"
    assert "KeyError: 'door'" in frames_of(raised.value)
    assert in_words(EOFError()) == "EOFError"


def test_an_error_of_another_process_is_named_by_what_it_was_there():
    class FromAfar(RuntimeError):
        __module__ = "ray.exceptions"
        cause = ValueError("the door is locked")

    assert in_words(FromAfar("Traceback (most recent call last): ...")) == "ValueError: the door is locked"


def test_a_reader_sees_what_comes_after_it_once(tmp_path):
    record(tmp_path, shard=0)
    reader = FaultReader(tmp_path)
    assert reader.new() == []
    record(tmp_path, shard=1)
    record(tmp_path, shard=2)
    assert [fault.shard for fault in reader.new()] == [1, 2]
    record(tmp_path, shard=3)
    assert [fault.shard for fault in reader.new()] == [3]


def test_a_reader_waits_for_the_end_of_a_line_and_begins_anew_with_another_record(tmp_path):
    file = RunDir(tmp_path).failures
    reader = FaultReader(tmp_path)
    record(tmp_path, shard=1)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])
    assert [fault.shard for fault in reader.new()] == [1]
    file.write_bytes(whole + whole)
    assert [fault.shard for fault in reader.new()] == [1]
    file.unlink()
    assert reader.new() == []
    record(tmp_path, shard=2)
    assert [fault.shard for fault in reader.new()] == [2]


def test_what_was_outlived_is_counted_by_what_was_started_anew(tmp_path):
    for what in ("env failed", "simulator died", "simulator hangs", "not finite"):
        record(tmp_path, what=what, seconds=1.0)
    record(tmp_path, what="env failed")  # at which the run ended
    record(tmp_path, what="env worker died", seconds=3.0)
    record(tmp_path, what="silent", process="inference rank 1", seconds=3.0)
    record(tmp_path, what="save failed", process="driver", seconds=0.0)
    counts = count_faults(tmp_path)
    assert counts.restarts == {"env": 4, "env_worker": 1, "inference": 1}
    assert counts.kinds == {
        "env failed": 2,
        "simulator died": 1,
        "simulator hangs": 1,
        "not finite": 1,
        "env worker died": 1,
        "silent": 1,
        "save failed": 1,
    }
    assert counts.seconds == 10.0


def test_faults_are_said_in_a_line(tmp_path):
    record(tmp_path, shard=3, error="ValueError: door\nis locked", lost="a rollout for batch 2", seconds=2.5)
    record(tmp_path, what="silent")
    record(tmp_path)
    faults = read_faults(tmp_path)
    assert str(FaultCounts.of(faults)) == "3 faults: env failed 2, silent 1"
    assert str(FaultCounts.of(faults[:1])) == "1 fault: env failed 1"
    assert str(faults[0]) == (
        "env worker 0, shard 3: env failed (ValueError: door); built anew after 2.5 s; "
        "lost: a rollout for batch 2"
    )
    assert str(faults[1]) == "env worker 0: silent (ValueError: x); built anew"
