"""The demo under veRL against its plan: what counts, and what is said of it."""

import numpy as np
import pytest

from benchmarks.learning import cells, under_verl
from benchmarks.learning.cells import Curve
from benchmarks.learning.preregistration import load

STATED = load()


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "RESULTS_FOLDER", tmp_path)
    monkeypatch.setattr(cells, "RAW_FOLDER", tmp_path / "raw")
    return tmp_path


def store(seeds, *, loss=0.0, lag=1.0):
    """Runs that learn to nearly all; those of `full` lose `loss` of it, a little differently by seed."""
    for cell in under_verl.runs(STATED):
        if cell.seed not in seeds:
            continue
        full = cell.label == "full"
        top = 0.95 - full * (loss + 0.001 * cell.seed)
        success = [*np.linspace(0.15, top, cell.batches // 2), *[top] * (cell.batches // 2)]
        steps = [3200 * (batch + 1) for batch in range(cell.batches)]
        lags = [lag * full] * cell.batches
        curve = Curve(env_steps=steps, seconds=steps, success=success, returns=success, staleness=lags)
        cells.write(cell, curve, {})


def test_runs_are_five_pairs_of_the_packaged_demo_that_share_their_seeds():
    planned = under_verl.runs(STATED)
    assert [(cell.seed, cell.label) for cell in planned[:4]] == [
        *((0, "off"), (0, "full")),
        *((1, "off"), (1, "full")),
    ]
    assert len({cell.name for cell in planned}) == 2 * len(STATED.verl["seeds"]) == 10


@pytest.mark.parametrize(("loss", "verdict"), [(0.01, "equivalent"), (0.3, "worse"), (-0.3, "better")])
def test_the_verdict_is_of_area_and_final_success_together(results, loss, verdict):
    store(STATED.verl["seeds"], loss=loss)
    assert under_verl.verdict(STATED) == verdict


def test_nothing_is_said_while_a_pair_is_missing(results):
    store([0, 1, 2, 3])
    assert under_verl.verdict(STATED) == "incomplete"
    assert "4 of 5 pairs" in under_verl.summary(STATED)


def test_a_pair_without_the_lag_does_not_count_and_is_listed(results):
    store([0, 1, 2, 3])
    store([4], lag=0.2)
    pairs, short = under_verl.counted(STATED)
    assert list(pairs) == [0, 1, 2, 3]
    assert short == ["seed 4: mean lag 0.20 of 0.80"]
    assert under_verl.verdict(STATED) == "equivalent"
    written = under_verl.write(STATED)[1].read_text()
    assert "seed 4: mean lag" in written


def test_the_table_is_put_between_its_marks_and_nothing_else_is_touched(results, tmp_path):
    store([0, 1])
    page = tmp_path / "page.md"
    page.write_text(f"before\n{under_verl.BEGIN_MARK}\nold\n{under_verl.END_MARK}\nafter\n")
    under_verl.publish(STATED, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| 1 | " in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no place for the table"):
        under_verl.publish(STATED, page)
