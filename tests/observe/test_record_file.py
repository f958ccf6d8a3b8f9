import fcntl
import json
import os
from collections import Counter
from multiprocessing import Process

import pytest

from rlinf_async.observe import record_file
from rlinf_async.observe.failures import FailureReader, count_failures, read_failures, record_failure
from rlinf_async.observe.record_file import NewLines, append, older_file, read_lines
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.status import status_facts

LIMIT = 4_000
"""Bytes, in the place of megabytes."""


def nothing_before():
    return b"header\n"


@pytest.fixture
def small(monkeypatch):
    """Records that are moved after a few faults."""
    monkeypatch.setattr(record_file.append, "__kwdefaults__", {"limit": LIMIT})


def record(run_dir, count, **facts):
    said = {"process": "env worker 0", "what": "env failed", "error": "ValueError", "action": "built anew"}
    for number in range(count):
        record_failure(run_dir, **{**said, "shard": number, **facts})


def test_two_files_hold_the_last_lines_and_no_more(tmp_path):
    path = tmp_path / "record.jsonl"
    for number in range(100):
        append(path, f"{number:09}\n".encode(), header=nothing_before, limit=100)
    assert path.stat().st_size <= 100
    assert older_file(path).stat().st_size <= 100
    lines = [line for line in read_lines(path) if line != "header"]
    assert lines == [f"{number:09}" for number in range(100 - len(lines), 100)]
    assert len(lines) > 9
    assert sorted(file.name for file in tmp_path.iterdir()) == ["record.before.jsonl", "record.jsonl"]


def test_a_line_that_is_longer_than_a_file_is_kept_alone(tmp_path):
    path = tmp_path / "record.jsonl"
    append(path, b"x" * 300 + b"\n", header=lambda: b"", limit=100)
    append(path, b"y" * 300 + b"\n", header=lambda: b"", limit=100)
    assert [line[0] for line in read_lines(path)] == ["x", "y"]


def _append_many(path, name):
    for number in range(300):
        append(path, f"{name} {number}\n".encode(), header=nothing_before, limit=2_000)


def test_processes_that_append_to_one_file_move_it_once_and_tear_no_line(tmp_path):
    path = tmp_path / "record.jsonl"
    processes = [Process(target=_append_many, args=(path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    lines = [line for line in read_lines(path) if line != "header"]
    assert all(line[0] in "abc" and line[2:].isdigit() for line in lines)
    # What is left of each is the end of it, without a gap.
    for name in {line[0] for line in lines}:
        numbers = [int(line[2:]) for line in lines if line[0] == name]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(lines) > 100


def test_a_process_that_was_stopped_keeps_nobody_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(record_file, "LOCK_PAUSE_S", 0.0)
    path = tmp_path / "record.jsonl"
    append(path, b"one\n", header=nothing_before)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        append(path, b"two\n", header=nothing_before)
        append(path, b"x" * 100 + b"\n", header=nothing_before, limit=100)
    assert [line[:6] for line in read_lines(path)] == ["one", "two", "header", "xxxxxx"]


def test_whoever_reads_what_is_new_misses_nothing_when_the_file_is_moved(tmp_path):
    path = tmp_path / "record.jsonl"
    reader, seen = NewLines(path), b""
    for number in range(50):
        append(path, f"{number:09}\n".encode(), header=lambda: b"", limit=100)
        if number % 3 == 0:
            seen += reader.read()
    seen += reader.read()
    assert seen.decode().split() == [f"{number:09}" for number in range(50)]


@pytest.mark.usefixtures("small")
def test_faults_are_counted_that_are_not_in_the_record_any_more(tmp_path):
    reader, found = FailureReader(tmp_path), Counter()
    for _ in range(20):
        record(tmp_path, 9, seconds=0.5)
        record(tmp_path, 1, what="silent", process="inference rank 1", seconds=2.0)
        record(tmp_path, 2, what="save failed", process="driver")
        found += Counter(fault["what"] for fault in reader.new())
    kinds = {"env failed": 180, "silent": 20, "save failed": 40}
    assert found == kinds
    assert len(read_failures(tmp_path)) < 60
    counts = count_failures(tmp_path)
    assert (counts.kinds, counts.restarts) == (kinds, {"env": 180, "inference": 20})
    assert counts.seconds == pytest.approx(180 * 0.5 + 20 * 2.0)
    (tmp_path / "summary.json").write_text(json.dumps({"steps": 3, "seconds": 2.0}))
    assert status_facts(tmp_path)["faults"]["counted"].startswith(
        "240 faults: env failed 180, save failed 40"
    )


@pytest.mark.usefixtures("small")
def test_a_header_that_is_damaged_counts_for_nothing(tmp_path):
    record(tmp_path, 200)
    path = RunDir(tmp_path).failures
    lines = path.read_text().splitlines()
    for header in ('{"earlier": 7}', '{"earlier": {"kinds": [1], "restarts": {"env": "x"}}}', "[1]"):
        path.write_text("\n".join([header, *lines[1:]]) + "\n")
        assert count_failures(tmp_path).kinds == {"env failed": len(read_failures(tmp_path))}


@pytest.mark.usefixtures("small")
def test_a_run_that_begins_anew_takes_the_older_faults_along(tmp_path):
    record(tmp_path, 200)
    for file in ("metrics.jsonl", "run.json"):
        (tmp_path / file).write_text("{}\n")
    said = []
    RunDir(tmp_path).set_aside(say=said.append)
    place = tmp_path / "earlier" / "1"
    assert said == [f"what an earlier run has left in {tmp_path} is in {place} now"]
    assert count_failures(place).kinds.total() == 200
    assert not [name for name in os.listdir(tmp_path) if name.startswith("failures")]
    record(tmp_path, 200)
    RunDir(tmp_path).begin({}, title="", versions={})
    assert count_failures(tmp_path).kinds.total() == 0
