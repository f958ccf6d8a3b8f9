"""Plans from one run against others: when they are made, and what is said of them."""

import json

import pytest

from benchmarks.schedules import held_out
from benchmarks.schedules.held_out import HELD_OUT_MODES, planned, table
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.sides import BENCH_MODES
from rlinf_async.lab.plan.job import changed
from rlinf_async.lab.plan.prediction import foresee
from tests.lab.plan.given import job, left_by, times


def test_every_mode_is_planned_from_the_trace_of_one_run(tmp_path):
    found = planned(left_by(tmp_path))
    assert abs(found["replay"]) < 0.05
    for mode in HELD_OUT_MODES:
        settings = changed(job(), BENCH_MODES[mode].overrides).settings
        assert found["planned"][mode] == pytest.approx(
            foresee("it", settings, times(), draws=4).step_s, rel=0.08
        )


def test_what_is_planned_is_written_down_before_it_is_run_and_no_run_is_made_twice(tmp_path, monkeypatch):
    results = tmp_path / "held_out.json"
    monkeypatch.setattr(held_out, "RESULTS_FILE", results)
    monkeypatch.setattr(held_out, "RUNS_FOLDER", tmp_path / "runs")
    monkeypatch.setattr(BenchCell, "measured_in", lambda cell, directory: left_by(directory / "run"))
    made = []

    def run(cell):
        assert json.loads(results.read_text())["libero"]["planned"][cell.mode] > 0
        made.append((cell.mode, cell.repetition))
        return {"step_s": 2.0}

    monkeypatch.setattr(BenchCell, "run", run)
    held_out.main(["libero"], repetitions=2)
    held_out.main(["libero"], repetitions=2)
    assert made == [(mode, repetition) for repetition in range(2) for mode in HELD_OUT_MODES]


def test_where_episodes_end_early_the_modes_with_and_without_dead_work_are_planned(tmp_path, monkeypatch):
    monkeypatch.setattr(held_out, "RUNS_FOLDER", tmp_path / "runs")
    monkeypatch.setattr(BenchCell, "measured_in", lambda cell, directory: left_by(directory / "run"))
    assert set(held_out.known_run("ends-early")["planned"]) == {"lean", "levels"}
    assert set(held_out.known_run("libero")["planned"]) == set(HELD_OUT_MODES)


def test_an_error_is_of_the_plan_against_the_median_of_what_was_measured():
    found = {
        "replay": 0.0,
        "planned": {"train": 3.3, "rollout": 1.0},
        "measured": {"train": [2.0, 3.0, 4.0], "rollout": []},
    }
    lines = table({"libero": found}).splitlines()
    assert lines[2:] == ["| `libero` | `train` | 3.00 [2.00, 4.00] | 3.30 | +10.0% | 3 |"]
