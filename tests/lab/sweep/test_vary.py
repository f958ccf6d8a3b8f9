"""Any key as an axis of a sweep."""

from __future__ import annotations

import json
import sys

import pytest
from rich.console import Console

from rlinf_async.lab.process import run_command
from rlinf_async.lab.sweep import command
from rlinf_async.lab.sweep.command import Watch
from rlinf_async.lab.sweep.plan import plan
from rlinf_async.lab.sweep.settings import LADDER_SETTINGS, Setting, parse_axis, parse_settings, varied
from rlinf_async.lab.sweep.steps import Averages
from rlinf_async.lab.sweep.table import Outcomes, as_csv, latex, markdown, rows, screen
from tests.lab.sweep.fakes import FakeTraining, run, sweep
from tests.making import step_report

OFF, *_, FULL = LADDER_SETTINGS
STALENESS = ("async.train.max_staleness", ("0", "1"))
ENVS = ("env.train.total_num_envs", ("16", "32"))


def names(settings: tuple[Setting, ...]) -> list[str]:
    return [setting.name for setting in settings]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("a.b=1,2,4", "a.b", ("1", "2", "4")),
        ("+a=x, y,x", "++a", ("x", "y")),
        ("a=1e-3,0.001,2,1.0e-3,+2", "a", ("1e-3", "2")),
        ("a=1,1.0,true,True", "a", ("1", "1.0", "true", "True")),
        ("a=[1,2],[3]", "a", ("[1,2]", "[3]")),
        ("a='p,q',r", "a", ("'p,q'", "r")),
    ],
)
def test_an_axis_is_a_key_and_its_values(text, key, values):
    assert parse_axis(text) == (key, values)


@pytest.mark.parametrize("text", ["a.b", "a.b=", "=1,2"])
def test_an_axis_without_a_key_or_values_is_refused(text):
    with pytest.raises(ValueError, match="must be a key and its values"):
        parse_axis(text)


def test_a_key_that_the_config_lacks_is_added_and_shown_without_plus():
    (one,) = varied([FULL], [parse_axis("+policy.width=8")])
    assert one.overrides[-1] == "++policy.width=8"
    assert one.name == "full width=8"
    (row,) = rows({one: Outcomes({0: run(1.0)})})
    assert row.values == {"policy.width": "8"}


def test_every_combination_is_run_and_off_knows_no_key_of_the_levels():
    assert names(varied([OFF, FULL], [STALENESS])) == ["off", "full max_staleness=0", "full max_staleness=1"]
    both = names(varied([OFF, FULL], [STALENESS, ENVS]))
    assert both[:2] == ["off total_num_envs=16", "off total_num_envs=32"]
    assert len(both) == 2 + 4
    assert varied([FULL], [STALENESS])[0].overrides[-1] == "async.train.max_staleness=0"
    assert varied([OFF, FULL], []) == (OFF, FULL)


def test_a_setting_is_compared_with_off_at_the_same_values_of_what_both_know():
    settings = varied([OFF, FULL], [STALENESS, ENVS])
    rates = {"off total_num_envs=16": 100.0, "off total_num_envs=32": 200.0}
    found = {one: Outcomes({0: run(rates.get(one.name, 400.0))}) for one in settings}
    increases = {row.name: row.increase for row in rows(found)}
    assert increases["full max_staleness=1 total_num_envs=16"] == pytest.approx(3.0)
    assert increases["full max_staleness=1 total_num_envs=32"] == pytest.approx(1.0)


def test_the_time_to_a_success_rate_ends_with_the_first_window_that_has_it():
    successes = [0.2, 0.9, 0.9, 0.9, 0.9, 1.0]
    steps = [step_report(seconds=2.0, env_steps=100, success=one) for one in successes]
    reached = Averages.of(steps, goal=0.9)
    assert (reached.seconds_to_goal, reached.env_steps_to_goal) == (10.0, 500.0)
    assert Averages.of(steps, goal=0.7).seconds_to_goal == 8.0  # not before a whole window
    assert Averages.of(steps, goal=0.95).seconds_to_goal is None


def test_a_goal_that_some_seeds_do_not_reach_is_counted_and_not_averaged():
    found = {
        FULL: Outcomes({0: run(1.0, seconds_to_goal=30.0), 1: run(1.0), 2: run(1.0, seconds_to_goal=50.0)})
    }
    assert "| 2 of 3 |" in markdown(rows(found), title="", off="")
    all_of_them = {FULL: Outcomes({0: run(1.0, seconds_to_goal=30.0), 1: run(1.0, seconds_to_goal=50.0)})}
    assert "| 40 |" in markdown(rows(all_of_them), title="", off="")


def test_of_three_seeds_there_is_an_interval():
    found = {FULL: Outcomes({seed: run(rate) for seed, rate in enumerate((90.0, 100.0, 110.0))})}
    # 4.303 x 10 / sqrt(3)
    assert "100 ±24.8" in markdown(rows(found), title="", off="")
    assert "24.84" in as_csv(rows(found))
    assert r"100 $\pm$24.8" in latex(rows(found))
    two = {FULL: Outcomes({0: run(90.0), 1: run(110.0)})}
    assert "100 (90..110)" in markdown(rows(two), title="", off="")


def test_what_is_varied_has_columns_of_its_own():
    found = {one: Outcomes({0: run(100.0)}) for one in varied([OFF, FULL], [STALENESS])}
    made = rows(found)
    assert "| setting | max_staleness | env steps/s |" in markdown(made, title="", off="")
    assert "| off | - |" in markdown(made, title="", off="")
    assert as_csv(made).startswith("setting,async.train.max_staleness,seeds")
    text = latex(made)
    assert r"setting & max\_staleness &" in text
    assert text.count(r"\\") == 1 + 3
    console = Console(record=True, width=80)
    console.print(screen(made))
    assert max(len(line.rstrip()) for line in console.export_text().splitlines()) <= 80


def test_a_sweep_over_a_key_keeps_runs_apart_and_writes_every_table(tmp_path, monkeypatch):
    training = FakeTraining(tmp_path / "fake", monkeypatch)
    planned = sweep(tmp_path / "sweep", "train,full", vary=("async.train.max_staleness=0,1",))
    console = Console(record=True, width=120)
    assert command.run(planned, console), console.export_text()
    assert training.calls() == [
        *("train-max_staleness=0-seed0", "train-max_staleness=1-seed0"),
        *("full-max_staleness=0-seed0", "full-max_staleness=1-seed0"),
    ]
    for name in ("table.md", "table.csv", "table.tex", "report.html"):
        assert (tmp_path / "sweep" / name).stat().st_size
    assert "; 0:" in console.export_text()  # the time left, once a run is done


def test_a_plan_with_axes_tries_them_in_full_beside_off(tmp_path):
    from rlinf_async.compose import compose_config

    def planned(*vary: str, modes: str | None = None, goal: float = 0.8):
        cfg = compose_config("local/point_reach", [])
        options = {"config_name": "local/point_reach", "config_dir": None, "overrides": (), "seeds": 1}
        return plan(cfg, **options, modes=modes, output=tmp_path / "s", vary=vary, success=goal)

    made = planned("settings.lr=1e-3,3e-3")
    assert [cell.setting.name for cell in made.cells] == [
        *("off lr=1e-3", "off lr=3e-3", "full lr=1e-3", "full lr=3e-3")
    ]
    assert names(planned().settings) == names(parse_settings("ladder"))
    with pytest.raises(ValueError, match="for the sweep to set"):
        planned("settings.seed=1,2")
    with pytest.raises(ValueError, match="the setting full max_staleness=-1 cannot run"):
        planned("async.train.max_staleness=-1")
    with pytest.raises(ValueError, match="--success=80 must be above 0"):
        planned(goal=80)


def test_a_run_under_way_says_its_step_and_the_time_left(tmp_path, monkeypatch):
    FakeTraining(tmp_path / "fake", monkeypatch)
    (cell,) = sweep(tmp_path / "sweep", "full").cells
    watch = Watch(cell, total=10, console=Console())
    assert watch.words() is None
    cell.directory.mkdir(parents=True)
    lines = [
        {"step": step, "async/step_seconds": seconds} for step, seconds in ((1, 60.0), (2, 5.0), (3, 7.0))
    ]
    (cell.directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert watch.words() == "full seed 0: step 3/10, 0:42 left"


def test_somebody_can_look_while_a_command_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("rlinf_async.lab.process.TICK_S", 0.01)
    seen = tmp_path / "seen"
    code = f"import pathlib\nwhile not pathlib.Path({str(seen)!r}).exists(): pass"
    assert run_command([sys.executable, "-c", code], tmp_path / "log", tick=seen.touch) == 0
