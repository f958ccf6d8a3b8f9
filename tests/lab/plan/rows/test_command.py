"""`rlinf-async plan --rows`: the errors first, then every row."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rlinf_async.lab.commands.planning import plan
from rlinf_async.lab.plan.rows.command import plan_rows
from rlinf_async.lab.plan.rows.row import Row
from tests.lab.plan.rows.given import by_hand, row

APP = typer.Typer()
APP.command()(plan)

ROWS = [
    row(placement, gpus=gpus, mode=mode)
    for mode in ("off", "train")
    for gpus in (8, 16, 64)
    for placement in ("collocated", "hybrid", "disaggregated")
    if placement == "disaggregated" or mode == "off"
]


def written(path, rows):
    names = [item.name for item in fields(Row)]
    lines = [",".join(names), *(",".join(str(getattr(one, name)) for name in names) for one in rows)]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def table(tmp_path):
    return written(tmp_path / "rows.csv", [replace(one, step_s=by_hand(one)) for one in ROWS])


def test_the_errors_on_rows_that_were_held_out_stand_first(table, tmp_path):
    result = CliRunner().invoke(APP, ["--rows", str(table), "--output", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    first = result.output.splitlines()[0]
    assert first.startswith("Held out: 5 synchronous rows, mean error ")
    assert "; 3 asynchronous rows, mean error " in first
    assert first.endswith(" Calibrated on 4 of 12 rows.")
    saved = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert saved["headline"] == first
    errors = [abs(one["error"]) for one in saved["rows"]]
    assert len(errors) == 12
    assert max(errors) < 0.03


def test_the_page_says_how_good_the_plan_of_a_published_table_is():
    headline = plan_rows(Path("benchmarks/schedules/rl_vla3.csv")).headline
    page = Path("docs/plan.md").read_text()
    for number in re.findall(r"error ([\d.]+)%", headline):
        assert f"{number} % on" in page
    assert f"at most {re.findall(r'largest ([0-9.]+)%', headline)[-1]} %" in page


def test_a_row_without_a_step_time_is_planned_and_counts_for_no_error(tmp_path):
    known = [replace(one, step_s=by_hand(one)) for one in ROWS[:6]]
    planned = plan_rows(written(tmp_path / "rows.csv", [*known, row(gpus=32, mode="train")]), count=6)
    assert planned.headline.startswith("Held out: no row, so that nothing says how good this plan is.")
    assert planned.rows[-1].error is None
    assert planned.rows[-1].planned_s == pytest.approx(by_hand(planned.rows[-1].row), rel=0.05)


def test_rows_that_are_marked_calibrate_and_no_others(tmp_path):
    rows = [replace(one, step_s=by_hand(one), calibrate="yes" if one.gpus == 8 else "") for one in ROWS]
    with pytest.raises(ValueError, match="mode train, on 8 GPUs cannot calibrate"):
        plan_rows(written(tmp_path / "rows.csv", rows))
    rows = [replace(one, calibrate="") if one.mode == "train" else one for one in rows]
    planned = plan_rows(written(tmp_path / "rows.csv", rows))
    assert [one.row.gpus for one in planned.rows if one.calibrates] == [8, 8, 8]


def test_workloads_have_costs_of_their_own(tmp_path):
    rows = [
        replace(one, workload=name, step_s=factor * by_hand(one))
        for one in ROWS[:9]
        for name, factor in (("a", 1), ("b", 3))
    ]
    costs = plan_rows(written(tmp_path / "rows.csv", rows)).as_dict()["costs"]
    assert costs["b"]["env_s"] == pytest.approx(3 * costs["a"]["env_s"])


def test_what_rows_do_not_tell_is_said(tmp_path):
    rows = [replace(one, step_s=by_hand(one)) for one in ROWS if one.placement != "hybrid"]
    notes = list(plan_rows(written(tmp_path / "rows.csv", [*rows, row("collocated", mode="full")])).notes)
    assert "do not tell apart: " in notes[0]
    assert "levels 1 and 3 are planned as off" in notes[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give the directory of a run, or --rows FILE"),
        (["somewhere", "--rows", "TABLE"], "a table has no RUN"),
        (["--rows", "nowhere.csv"], "nowhere.csv cannot be read"),
        (["somewhere", "--calibrate", "2"], "is for --rows alone"),
    ],
)
def test_mistakes_are_named(table, arguments, words):
    result = CliRunner().invoke(APP, [str(table) if one == "TABLE" else one for one in arguments])
    assert result.exit_code != 0
    assert words in " ".join(result.output.replace("│", " ").split())


def test_a_table_without_a_synchronous_time_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no synchronous row has a step_s"):
        plan_rows(written(tmp_path / "rows.csv", ROWS))
