"""A run that has changed its number of shards: what it expected, and what it was."""

import pytest

from rlinf_async.lab.report.run_files import RunFiles
from rlinf_async.lab.report.run_view import subjects
from rlinf_async.lab.report.shard_fit import remark
from tests.lab.report.making import FACTS, write_run

FIT = {
    "shards": 2,
    "before": 8,
    "rates": {"2": 1.6, "4": 1.5, "8": 1.0},
    "step_s": 1.0,
    "answer_s": 0.5,
    "work_s": 1.25,
    "decision_s": 10.0,
}


def read(tmp_path, **facts):
    return RunFiles.read(write_run(tmp_path, facts={**FACTS, **facts}))


def said(run):
    return remark(subjects([run])[0])


def test_the_decisions_that_were_expected_stand_beside_those_that_were_made(tmp_path):
    words = said(read(tmp_path, shard_fits=[FIT], shards_since=10.0))
    assert "2 shards per env worker follow the 8" in words
    assert "1.60 times the decisions are expected" in words
    # Steps of 4 and 2 s since then, and answers of 2 and 18 s.
    assert (
        "After the last change env workers made 0.77 times the decisions: a decision of a shard took 13000 ms"
        in words
    )


def test_a_run_that_has_kept_its_number_says_why(tmp_path):
    words = said(read(tmp_path, shard_fits=[{**FIT, "shards": 8}]))
    assert "8 shards per env worker are kept" in words
    assert "last change" not in words


def test_each_change_is_said_and_the_last_one_is_compared_with_what_was_made(tmp_path):
    second = {**FIT, "before": 2, "shards": 1, "rates": {"1": 1.2, "2": 1.0}, "decision_s": 26.0}
    words = said(read(tmp_path, shard_fits=[FIT, second], shards_since=10.0))
    assert "2 shards per env worker follow the 8" in words
    assert "then, 1 shards per env worker follow the 2" in words
    assert "After the last change env workers made 2.00 times the decisions" in words
    kept = {**FIT, "before": 2, "shards": 2, "rates": {"2": 1.0}}
    words = said(read(tmp_path / "kept", shard_fits=[FIT, kept], shards_since=10.0))
    assert "2 shards per env worker are kept" in words
    assert "After the last change env workers made 0.77 times the decisions" in words


def test_spans_of_shards_before_the_change_are_left_out(tmp_path):
    run = read(tmp_path, shard_fits=[FIT], shards_since=10.0)
    assert min(span["began"] for span in run.spans) == 10.0
    assert any("before the run has changed its number of shards" in sentence for sentence in run.missing)
    other = read(tmp_path / "other")
    assert min(span["began"] for span in other.spans) == 0.0


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        [],
        {},
        {"shards": 2},
        {**FIT, "rates": []},
        {**FIT, "rates": {"x": 1}},
        {**FIT, "shards": 3},
        {**FIT, "decision_s": 0},
        {**FIT, "work_s": "long"},
        {**FIT, "more": 1},
    ],
)
def test_a_record_that_no_run_has_written_is_not_shown(tmp_path, damaged):
    assert said(read(tmp_path, shard_fits=[damaged], shards_since="yesterday")) == ""
    assert said(read(tmp_path / "list", shard_fits=damaged)) == ""
