import errno
import os
import re
from pathlib import Path

import pytest

import rlinf_async
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.spans import SPAN_KINDS, Process, SpanLog, clock_offset, kind_and_rank
from tests.making import Clock


def test_a_span_is_on_disk_as_soon_as_it_has_ended(tmp_path):
    clock = Clock()
    log = SpanLog(tmp_path, process="env worker 0", now=clock)
    with log.span("step", shard=3) as facts:
        clock.now = 2.0
        facts["more"] = 4
    assert read_spans(tmp_path) == [
        {"kind": "step", "began": 0.0, "ended": 2.0, "shard": 3, "more": 4, "process": "env worker 0"}
    ]


def test_spans_of_all_processes_are_read_on_one_clock_in_order_of_their_ends(tmp_path):
    for process, offset, ended in (("a", 0.0, 5.0), ("b", -100.0, 104.0), ("c", 3.0, 3.0)):
        SpanLog(tmp_path, process=process, offset=offset, now=Clock(ended)).add("step", ended - 1.0)
    spans = read_spans(tmp_path)
    assert [(span["process"], span["began"], span["ended"]) for span in spans] == [
        ("b", 3.0, 4.0),
        ("a", 4.0, 5.0),
        ("c", 5.0, 6.0),
    ]


def test_lines_that_were_cut_off_or_are_foreign_are_left_out(tmp_path):
    log = SpanLog(tmp_path)
    log.add("act", 0.0, size=1)
    (file,) = tmp_path.iterdir()
    with file.open("a") as lines:
        lines.write('[1]\n"text"\n{"kind": "act", "began": "soon", "ended": 2}\n\xff\n{"kind": "act", "beg')
    assert [span["size"] for span in read_spans(tmp_path)] == [1]


def test_an_exception_ends_a_span_and_is_named_in_it(tmp_path):
    log = SpanLog(tmp_path)
    with pytest.raises(KeyError), log.span("forward"):
        raise KeyError("x")
    (span,) = read_spans(tmp_path)
    assert span["error"] == "KeyError"
    assert log.open_spans() == []


def test_what_goes_on_is_known_also_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clock = Clock()
    log = SpanLog(None, now=clock)
    with log.span("gate", shard=1):
        clock.now = 2.0
        with log.span("ask", shard=2):
            clock.now = 3.0
            kinds = [(span["kind"], span["shard"], span["seconds"]) for span in log.open_spans()]
    assert kinds == [("gate", 1, 3.0), ("ask", 2, 1.0)]
    assert log.ended == 2
    assert not list(tmp_path.iterdir())


def test_files_stay_below_their_limit_and_keep_what_is_newest(tmp_path):
    clock = Clock()
    log = SpanLog(tmp_path, process="rank 0", limit=2000, now=clock)
    for number in range(500):
        clock.now = float(number)
        log.add("act", clock.now, number=number)
    assert {path.stat().st_size <= 2000 for path in tmp_path.iterdir()} == {True}
    assert len(list(tmp_path.iterdir())) == 2
    numbers = [span["number"] for span in read_spans(tmp_path)]
    assert numbers == list(range(numbers[0], 500))
    assert len(numbers) > 20
    assert {span["process"] for span in read_spans(tmp_path)} == {"rank 0"}


def test_a_full_disk_ends_the_record_but_not_the_run(tmp_path, monkeypatch):
    log = SpanLog(tmp_path)

    def full(file, line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.warns(UserWarning, match="No space left"):
        log.add("act", 0.0)
    log.add("act", 0.0)


def test_the_shortest_trip_tells_the_offset_of_a_clock():
    slow, quick = (10.0, 30.0, 20.0), (40.0, 45.5, 41.0)
    assert clock_offset([slow, quick]) == 5.0


def test_a_process_is_called_by_its_name_in_the_file_and_in_its_first_line(tmp_path):
    deep = tmp_path / "run" / "trace"
    SpanLog(deep, process="env worker 0").add("step", 0.0)
    SpanLog(deep).add("step", 0.0)
    files = {path.name: path.read_text().splitlines() for path in deep.iterdir()}
    pid = os.getpid()
    assert files.keys() == {f"env-worker-0-{pid}.jsonl", f"process-{pid}.jsonl"}
    assert files[f"env-worker-0-{pid}.jsonl"][0] == f'{{"process":"env worker 0","pid":{pid},"offset":0.0}}'
    assert files[f"process-{pid}.jsonl"][0] == f'{{"process":"process","pid":{pid},"offset":0.0}}'


def test_times_are_written_to_the_microsecond(tmp_path):
    SpanLog(tmp_path, now=Clock(2.12345678)).add("step", 1.12345678)
    (span,) = read_spans(tmp_path)
    assert (span["began"], span["ended"]) == (1.123457, 2.123457)


def test_spans_without_a_header_are_on_our_clock_and_go_on_after_a_bad_line(tmp_path):
    span = '{"kind": "act", "began": 1.0, "ended": 2.0}'
    (tmp_path / "other.jsonl").write_bytes(b"\xff broken\n" + span.encode() + b"\n")
    (tmp_path / "them.jsonl").write_text('{"process": "they"}\n' + span + "\n")
    found = [(span["process"], span["began"], span["ended"]) for span in read_spans(tmp_path)]
    assert sorted(found) == [("other", 1.0, 2.0), ("they", 1.0, 2.0)]


RECORDED = re.compile(r"""spans\.(?:span|add)\(\s*"([^"]+)\"""")


def test_every_kind_that_a_run_records_stands_in_the_table_and_no_other():
    package = Path(rlinf_async.__file__).parent
    recorded = [
        kind
        for room in ("loops", "wire", "ray_runtime", "hosts")
        for path in (package / room).rglob("*.py")
        for kind in RECORDED.findall(path.read_text())
    ]
    assert set(recorded) == SPAN_KINDS.keys()


def test_processes_are_known_by_their_names():
    assert [kind_and_rank(process.numbered(12)) for process in Process] == [(one, 12) for one in Process]
    assert kind_and_rank(Process.DRIVER) == ("driver", None)
    assert kind_and_rank("x 1 y") == ("x 1 y", None)
