import json

import pytest

from rlinf_async.lab.report.run_files import RunFiles
from tests.lab.report.making import CONFIG, FACTS, TRACE, metrics, write_run, write_trace


def said(run):
    return " ".join(RunFiles.read(run).missing)


def test_a_whole_run_lacks_nothing(tmp_path):
    run = RunFiles.read(write_run(tmp_path))
    assert (run.name, run.config, run.facts, run.missing) == ("mine", CONFIG, FACTS, [])
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert len(run.spans) == sum(len(spans) for spans in TRACE.values())
    assert run.setting("async.mode") == "full"
    assert run.setting("async.advanced.proximal", "recomputed") == "recomputed"
    assert run.setting("async.mode.deeper", 1) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is a file"),
        (lambda path: path.mkdir(), "is no run directory: it has none of config.yaml, run.json"),
    ],
)
def test_what_is_no_run_directory_is_an_error_that_says_why(tmp_path, make, words):
    make(tmp_path / "place")
    with pytest.raises(ValueError, match=words):
        RunFiles.read(tmp_path / "place")


def test_a_run_that_failed_in_its_first_second_can_be_read(tmp_path):
    run = write_run(tmp_path, lines=[], trace={}, summary={})
    for words in ("No step has been reported", "no summary.json", "There is no trace"):
        assert words in said(run)


def test_a_run_that_goes_on_says_where_it_was_last_seen(tmp_path):
    run = write_run(tmp_path, summary={})
    (run / "status.json").write_text('{"time": 7.0, "step": 3, "total": 9}')
    assert "was last seen at step 3 of 9" in said(run)


def test_a_run_of_rlinfs_own_has_a_config_and_says_what_it_is(tmp_path):
    tensorboard = tmp_path / "stock" / "tensorboard"
    tensorboard.mkdir(parents=True)
    (tensorboard / "config.yaml").write_text("runner: {max_epochs: 3}\n")
    run = RunFiles.read(tmp_path / "stock")
    assert run.stock
    assert run.config == {"runner": {"max_epochs": 3}}
    assert run.missing[0].startswith("This is a run of RLinf's own script")
    assert not RunFiles.read(write_run(tmp_path)).stock


def test_damaged_and_foreign_lines_of_metrics_are_counted_and_left_out(tmp_path):
    run = write_run(tmp_path)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(
            b'[1]\n"text"\n{"no": "step"}\n\xff\xfe\n'
            b'{"step": 4, "x": NaN, "y": "text", "z": true}\n{"step": 5, "a'
        )
    read = RunFiles.read(run)
    assert read.metrics[-1] == {"step": 4}
    assert "5 lines of metrics.jsonl cannot be read and are left out." in read.missing


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "summary.json", "status.json"])
@pytest.mark.parametrize(
    "content", [b"{", b"[1, 2]", b"\xff\xfe\x00", b"null", b"{'a': ", b"[" * 3000, b"a: &a {b: *a}", b"\x00"]
)
def test_damaged_files_are_named_and_left_out(tmp_path, name, content):
    run = write_run(tmp_path)
    (run / name).write_bytes(content)
    read = RunFiles.read(run)
    assert {"config.yaml": read.config, "run.json": read.facts}.get(name, {}) == {}
    assert any(name in sentence for sentence in read.missing)


def test_a_directory_in_the_place_of_a_file_is_named(tmp_path):
    run = write_run(tmp_path, facts={})
    (run / "run.json").mkdir()
    assert "run.json cannot be read (Is a directory)." in said(run)


def test_an_empty_file_is_as_good_as_none(tmp_path):
    run = write_run(tmp_path, facts={}, lines=[])
    for name in ("run.json", "metrics.jsonl"):
        (run / name).touch()
    assert "There is no readable run.json" in said(run)
    assert "No step has been reported" in said(run)


def test_foreign_spans_are_left_out(tmp_path):
    run = write_run(tmp_path, trace={"driver": []})
    with (run / "trace" / "driver-1.jsonl").open("a") as file:
        for began, ended in (("NaN", "1"), ("2", "1"), ("1", "1e999"), ("1", "2")):
            file.write(f'{{"kind": "step", "began": {began}, "ended": {ended}}}\n')
    assert [(span["began"], span["ended"]) for span in RunFiles.read(run).spans] == [(1, 2)]


def test_a_damaged_header_costs_nothing(tmp_path):
    run = write_run(tmp_path)
    spans = RunFiles.read(run).spans
    (run / "trace" / "broken-1.jsonl").write_text('{"process": "x", "offset": null}\n')
    assert RunFiles.read(run).spans == spans


def test_steps_that_were_taken_again_count_as_they_were_last(tmp_path):
    lines = [metrics(step, env__return=0.0) for step in (1, 2, 3, 4)]
    lines += [metrics(step, env__return=7.0) for step in (3, 4, 5)]
    run = RunFiles.read(write_run(tmp_path, lines=lines))
    assert [(line["step"], line["env/return"]) for line in run.metrics] == [
        (1, 0.0),
        (2, 0.0),
        (3, 7.0),
        (4, 7.0),
        (5, 7.0),
    ]


def test_of_several_starts_in_one_directory_the_last_one_is_traced(tmp_path):
    run = write_run(tmp_path, trace={"driver": [("learn", 0, 1, {"step": 1}), ("learn", 1, 2, {"step": 2})]})
    (run / "trace" / "driver-1.jsonl").rename(run / "trace" / "driver-0.jsonl")
    write_trace(run / "trace", TRACE, offset=100.0)
    read = RunFiles.read(run)
    assert min(span["began"] for span in read.spans) == 100.0
    assert "earlier start" in " ".join(read.missing)


def test_the_trace_of_a_run_without_its_driver_says_what_shares_are_of(tmp_path):
    run = write_run(tmp_path, trace={name: spans for name, spans in TRACE.items() if name != "driver"})
    assert "from the first to the last record" in said(run)


def test_a_run_that_has_no_driver_does_not_lack_one(tmp_path):
    trace = {name: spans for name, spans in TRACE.items() if name != "driver"}
    assert "driver" not in said(write_run(tmp_path, trace=trace, facts={"driver": False}))


def test_plain_data_can_be_written_as_json(tmp_path):
    json.dumps(RunFiles.read(write_run(tmp_path)).metrics)
