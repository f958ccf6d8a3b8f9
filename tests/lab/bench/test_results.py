import json
import os
from dataclasses import replace

import pytest
from rich.console import Console

from rlinf_async.lab.bench import command
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.lab.bench.command import DEAD_WORK_NAMES, show
from rlinf_async.lab.bench.results import Results
from rlinf_async.lab.bench.scenarios import SCENARIOS_BY_NAME
from rlinf_async.lab.bench.sides import STANDARD_MODES
from rlinf_async.lab.commands import comparing

CELL = BenchCell(scenario="libero", mode="full", repetition=0, warm_up=3, steps=4)


def result(rate, **changes):
    return {
        "fresh_steps_per_s": rate,
        "trained_per_s": rate / 10,
        "collected_per_s": rate / 10,
        "overlap_efficiency": 0.9,
        "own_efficiency": 0.95,
        "step_s": 2.0,
        "retrained": 0.0,
        "batch_size": 8.0,
        "chunk_cv": 0.3,
        "staleness_max": 1,
        "idle": {"env": 0.1, "inference": 0.5, "learner": 0.2},
        "bounds_s": {"env": 1.8, "inference": 0.2, "learner": 1.0},
        "own_bounds_s": {"env": 1.8, "inference": 0.2, "learner": 1.3},
        "cpu_ms": 0.6,
        "others": 0.1,
        **changes,
    }


def bench(**rates):
    """A bench with one rate per repetition and mode; a dash in a mode's name is an underscore here."""
    made = Results()
    for mode, values in rates.items():
        for repetition, rate in enumerate(values):
            cell = replace(CELL, mode=mode.replace("_", "-"), repetition=repetition)
            made.add(cell, result(rate))
    return made


def row(made, mode):
    return next(one for one in made.rows() if one["mode"] == mode)


def test_a_row_holds_medians_and_ratios_within_a_repetition():
    # Machines slow down: the ratios of repetitions are 2, 3 and 4, those of the medians would be 3.3.
    made = bench(stock_sync_1=[100, 10, 50], full=[200, 30, 200])
    assert row(made, "full")["fresh_steps_per_s"] == 200
    assert row(made, "full")["ratio_stock_sync"] == 3.0
    assert row(made, "stock-sync-1")["ratio_stock_sync"] == 1.0


def test_a_row_says_how_far_repetitions_are_apart():
    made = bench(stock_sync_1=[100, 10, 50], full=[200, 30, 200])
    assert row(made, "full")["range"]["fresh_steps_per_s"] == [30, 200]
    assert row(made, "full")["range"]["ratio_stock_sync"] == [2.0, 4.0]
    assert row(made, "full")["range"]["overlap_efficiency"] == [0.9, 0.9]


def test_what_a_run_could_not_say_is_left_out_of_its_row():
    made = Results()
    for repetition, cpu_ms in enumerate((None, 0.4)):
        made.add(replace(CELL, repetition=repetition), result(10, cpu_ms=cpu_ms, overlap_efficiency=None))
    assert row(made, "full")["cpu_ms"] == 0.4
    assert row(made, "full")["overlap_efficiency"] is None
    assert row(made, "full")["range"]["overlap_efficiency"] is None


def test_results_over_other_steps_are_not_compared(tmp_path):
    made = Results(tmp_path / "bench.cells.jsonl")
    made.add(replace(CELL, warm_up=1, steps=2), result(10))
    with pytest.raises(ValueError, match=r"other steps .*\(1, 2\), \(3, 4\).* write to another file"):
        command.open_results([replace(CELL, mode="train")], json_path=tmp_path / "bench.json")


def test_the_best_stock_mode_of_a_repetition_is_what_counts():
    made = bench(stock_sync_1=[100], stock_sync_2=[120], stock_async=[150], full=[300])
    assert row(made, "full")["ratio_stock_sync"] == 2.5
    assert row(made, "full")["ratio_best_stock"] == 2.0
    assert row(made, "full")["ratios"] == {"stock-sync-1": 3.0, "stock-sync-2": 2.5, "stock-async": 2.0}


def test_every_row_has_the_keys_that_are_promised():
    promised = {
        *("scenario", "mode", "fresh_steps_per_s", "ratio_stock_sync", "ratio_best_stock"),
        *("overlap_efficiency", "own_efficiency", "cpu_ms", "staleness_max", "idle", "range"),
    }
    for one in bench(stock_sync_1=[1], full=[2]).rows():
        assert promised <= one.keys()


def test_a_mode_without_anything_to_compare_with_has_no_ratio():
    assert row(bench(full=[1.0]), "full")["ratio_best_stock"] is None


def test_a_failed_run_is_a_row_with_its_error_and_is_tried_again():
    made = Results()
    made.add(CELL, {"error": "exit status 1: no space left"})
    assert made.rows()[0]["error"] == "exit status 1: no space left"
    assert list(made.missing([CELL])) == [CELL]
    made.add(CELL, result(10))
    assert not list(made.missing([CELL]))
    assert "error" not in made.rows()[0]


def test_an_interrupted_bench_goes_on_where_it_ended(tmp_path):
    path = tmp_path / "bench.cells.jsonl"
    first = Results(path)
    first.add(CELL, result(10))
    again = Results(path)
    other = replace(CELL, repetition=1)
    assert list(again.missing([CELL, other])) == [other]
    assert again.rows() == first.rows()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "line", ["{", "[]", "7", '{"cell": {}, "result": {}}', '{"cell": {"x": 1}, "result": 1}', "[" * 9999]
)
def test_a_file_that_is_none_of_a_bench_is_named_with_its_line(tmp_path, line):
    path = tmp_path / "bench.cells.jsonl"
    Results(path).add(CELL, result(10))
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .* is no result of a bench; write to another file"):
        Results(path)


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_results_is_not_waited_for(tmp_path):
    path = tmp_path / "bench.cells.jsonl"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="cannot be read: it is no file; write to another file"):
        Results(path)


def test_repetitions_are_interleaved():
    cells = command.plan(scenarios=["libero"], modes=["stock-sync-1", "full"], repetitions=2)
    assert [(cell.mode, cell.repetition) for cell in cells] == [
        ("stock-sync-1", 0),
        ("full", 0),
        ("stock-sync-1", 1),
        ("full", 1),
    ]


def test_everything_is_compared_by_default_three_times():
    cells = command.plan(scenarios=None, modes=None)
    here = {name for name in SCENARIOS_BY_NAME if command.unavailable(name) is None}
    assert {name for name, scenario in SCENARIOS_BY_NAME.items() if scenario.env} <= here
    assert {cell.scenario for cell in cells} == here
    ending = {cell.scenario for cell in cells if cell.mode in DEAD_WORK_NAMES}
    assert ending == {name for name in here if SCENARIOS_BY_NAME[name].ends_early} == {"ends-early"}
    cells = [cell for cell in cells if cell.mode not in DEAD_WORK_NAMES]
    assert {cell.mode for cell in cells} == set(STANDARD_MODES)
    left_out = sum(name in STANDARD_MODES for one in here for name in SCENARIOS_BY_NAME[one].without)
    assert len(cells) == 3 * (len(here) * len(STANDARD_MODES) - left_out)
    assert {(cell.warm_up, cell.steps) for cell in cells} == {(3, 4)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scenarios": ["librero"]}, "scenario 'librero' is not one of .*; did you mean 'libero'"),
        ({"modes": ["ful"]}, "mode 'ful' is not one of .*; did you mean 'full'"),
        ({"repetitions": 0}, "repetitions=0 must be at least 1"),
    ],
)
def test_what_is_not_known_is_refused_with_what_is_near(wrong, message):
    with pytest.raises(ValueError, match=message):
        command.plan(**{"scenarios": None, "modes": None, **wrong})


def test_a_real_scenario_that_cannot_run_here_is_refused_with_what_is_missing(monkeypatch):
    monkeypatch.delenv("RLINF_ASYNC_LIBERO_ASSETS", raising=False)
    with pytest.raises(ValueError, match="'libero-real' cannot run here: RLINF_ASYNC_LIBERO_ASSETS names no"):
        command.plan(scenarios=["libero-real"], modes=None)


def test_what_comes_out_is_shown_and_written(tmp_path):
    made = bench(stock_sync_1=[100, 110], full=[200, 220])
    made.add(replace(CELL, mode="train"), {"error": "exit status 1:\nRuntimeError: gone"})
    console = Console(record=True, width=140)
    show(made, console)
    text = console.export_text()
    assert "2.00" in text
    assert "200-220" in text
    assert "train failed: exit status 1:\nRuntimeError: gone" in text
    command.write(tmp_path / "bench.json", made)
    assert json.loads((tmp_path / "bench.json").read_text())["rows"] == made.rows()


@pytest.mark.parametrize("scenarios", [["libero,maniskill"], ["libero", "maniskill"], ["libero, maniskill"]])
def test_names_are_separated_by_commas_or_given_one_by_one(scenarios):
    assert comparing.split_at_commas(scenarios) == ["libero", "maniskill"]


def test_the_table_fits_into_80_columns():
    made = bench(stock_decoupled=[1100, 1110], stock_sync_1=[1000, 1010], full=[2200, 2220])
    console = Console(record=True, width=200)
    show(made, console)
    assert max(map(len, console.export_text().splitlines()[2:])) <= 80
