"""What `async.adapt` should gain in the bench, on fewer steps than the page has."""

import pytest

from benchmarks.schedules import adapt
from rlinf_async.experiments.bench.scenarios import SCENARIOS


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(adapt, "BATCHES", 20)


def test_the_bound_pays_in_train_bound_and_is_left_alone_in_maniskill(short, capsys):
    found = {
        name: {row[0]: row for row in adapt.rows(SCENARIOS[name])} for name in ("train-bound", "maniskill")
    }
    one, two, adapts = (found["train-bound"][name] for name in ("bound 1", "bound 2", "adapt"))
    assert one[1] < adapts[1] < two[1]
    assert one[3] < adapts[3] < two[3]
    assert adapts[4]["async/adapt/max_staleness"] == 2
    one, adapts = (found["maniskill"][name] for name in ("bound 1", "adapt"))
    assert adapts[1:4] == one[1:4]
    adapt.main(["maniskill"])
    assert len(capsys.readouterr().out.splitlines()) == 3
