"""What `async.adapt` should gain in the bench, on fewer steps than the page has."""

import pytest

from benchmarks.schedules import adapt
from rlinf_async.experiments.bench.scenarios import SCENARIOS


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(adapt, "BATCHES", 20)


@pytest.mark.parametrize("name", ["train-bound", "maniskill"])
def test_a_bound_that_does_not_pay_is_left_alone(short, name):
    found = {row[0]: row for row in adapt.rows(SCENARIOS[name], "full")}
    one, two, adapts = (found[cell] for cell in ("bound 1", "bound 2", "adapt"))
    assert one[1] == pytest.approx(two[1])
    assert adapts[1:4] == one[1:4]
    assert adapts[4]["async/adapt/max_staleness"] == 1


def test_a_line_is_printed_for_each_setting(short, capsys):
    adapt.main(["maniskill"])
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == ["maniskill"] * 3


def test_a_bound_that_pays_is_found(monkeypatch):
    """Scores come sooner to the learner where there is a batch more to begin with."""
    monkeypatch.setattr(adapt, "BATCHES", 34)
    found = {row[0]: row for row in adapt.rows(SCENARIOS["balanced"], "full-scorer")}
    one, two, adapts = (found[cell] for cell in ("bound 1", "bound 2", "adapt"))
    assert two[1] > 1.02 * one[1]
    assert 1.01 * one[1] < adapts[1] < two[1]
    assert adapts[4]["async/adapt/max_staleness"] == 2
