"""The command: what it finds, says and writes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import typer
from typer.testing import CliRunner

from rlinf_async.lab.commands.planning import plan
from rlinf_async.lab.plan import command
from rlinf_async.lab.plan.command import compare, verdict
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.table import Range
from rlinf_async.lab.virtual.times import TrainingTimes
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.reading.status import status_of
from tests.lab.plan.given import FACTS, job, left_by, slow_down, times

APP = typer.Typer()
APP.command()(plan)


SLOW = {"async": {"mode": "train"}}, {"plan": {**FACTS["plan"], "shards_per_worker": 1}}


def test_the_fastest_preset_is_named_with_what_to_paste():
    config, facts = SLOW
    found = compare(job(config, **facts), times(training=TrainingTimes(sample_s=1 / 64)))
    assert {one.name for one in found.others} == {
        f"mode={mode}" for mode in ("off", "lean", "rollout", "streamer", "full")
    }
    assert found.fastest.name == "mode=full"
    assert found.fastest.steps_per_s.middle > 1.1 * found.now.steps_per_s.middle
    assert re.match(r"Fastest of these, [\d.]+ times as fast:\n    async\.mode=full\n", verdict(found))


def test_what_the_user_asks_for_comes_first_and_may_be_the_fastest():
    tries = [["async.train.max_staleness=2"], ["async.advanced.balance=tasks", "async.rollout.shards=4"]]
    found = compare(job(), times(), tries=tries)
    names = [one.name for one in found.others]
    assert names[:2] == ["train.max_staleness=2", "advanced.balance=tasks, rollout.shards=4"]
    assert "mode=full" not in names  # the run as it is
    rate = found.now.steps_per_s.middle
    twice = replace(found.now, name="mine", overrides=("a=1", "b=2"), steps_per_s=Range.of([2 * rate]))
    assert "2.00 times as fast:\n    a=1\n    b=2\n" in verdict(replace(found, others=(twice, *found.others)))


def test_the_errors_that_a_plan_tells_are_those_that_were_measured():
    rows = json.loads(Path("benchmarks/schedules/held_out.json").read_text()).values()
    errors = [
        abs(row["planned"][setting] / step_s - 1)
        for row in rows
        for setting, measured in row["measured"].items()
        for step_s in measured
    ]
    assert f"off by {fmean(errors):.0%}".replace("%", " %") in command.HELD_OUT
    assert f"{max(errors):.0%} at most".replace("%", " %") in command.HELD_OUT


def test_off_is_planned_as_the_loops_one_after_the_other():
    (off,) = [one for one in compare(job(), times()).others if one.name == "mode=off"]
    assert off.staleness == 0
    plan = {**FACTS["plan"], "shards_per_worker": 1}
    alone = job({"async": {"mode": "off"}}, plan=plan)
    assert off.step_s == pytest.approx(foresee("it", alone.settings, times()).step_s)


def test_where_nothing_gains_it_says_so():
    bound = times(training=TrainingTimes(sample_s=1.0, score_share=0.0))
    found = compare(job(), bound)
    assert found.fastest is found.now
    assert (found.now.limit.part, found.now.limit.saturated) == ("learner", True)
    assert verdict(found).startswith("None of these is 1% faster than the run as it is. ")


def test_a_preset_that_does_not_go_with_the_run_is_left_out():
    """A deterministic run has level 1 alone."""
    alone = job(
        {"async": {"mode": "train", "deterministic": True}}, plan={**FACTS["plan"], "shards_per_worker": 1}
    )
    assert compare(alone, times()).others == ()
    with pytest.raises(ValueError, match=r"async\.deterministic=true"):
        compare(alone, times(), tries=[["async.mode=full"]])


def test_a_plan_of_a_run_is_said_written_and_opens_as_a_run(tmp_path):
    run, out = left_by(tmp_path / "run"), tmp_path / "out"
    arguments = [str(run), "--try", "async.mode=train,async.train.max_staleness=2"]
    result = CliRunner().invoke(APP, [*arguments, "--output", str(out)])
    assert result.exit_code == 0, result.output
    assert "the plan of it" in result.output
    assert "off by 10 % on average and 28 % at most" in result.output
    assert "Not known" in result.output
    content = json.loads((out / "plan.json").read_text())
    assert content["replay"]["close"] is True
    assert content["now"]["env_steps_per_s"] > 0
    assert content["others"][0]["overrides"] == ["async.mode=train", "async.train.max_staleness=2"]
    assert any("batches" in line or "steps" in line for line in status_of(out / "run"))
    steps = RunReader(out / "run").metrics()
    again = CliRunner().invoke(APP, [*arguments, "--output", str(out)])
    assert again.exit_code == 0, again.output
    assert RunReader(out / "run").metrics() == steps
    assert RunReader(out / "run" / "earlier" / "1").metrics() == steps


def test_eighty_columns_do_not_break_what_is_to_be_pasted(tmp_path):
    tried = "async.train.max_staleness=2,async.advanced.proximal=loglinear"
    result = CliRunner().invoke(APP, [str(left_by(tmp_path)), "--try", tried], env={"COLUMNS": "80"})
    assert "\nadvanced.proximal=loglinear " in result.output


def test_a_doubtful_replay_is_the_exit_status(tmp_path):
    run = left_by(tmp_path)
    slow_down(run, 2)
    result = CliRunner().invoke(APP, [str(run)])
    assert result.exit_code == 1
    assert "warning" in result.output


@pytest.mark.parametrize("arguments", [[], ["nowhere"]])
def test_what_gives_no_plan_is_an_error_in_a_sentence(arguments):
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("tried", "words"),
    [
        ("async.rollout.shards=[", "cannot be read: is a bracket or a quote left open"),
        ("plan.env_workers={", "cannot be read: is a bracket or a quote left open"),
        ("plan.env_workers=abc", "plan.env_workers=abc must be a whole number, as in plan.env_workers=2"),
        ("plan.env_workers=null", "plan.env_workers=null must be a whole number"),
        ("plan.total_envs=[1]", "must be a whole number"),
        ("plan.total_envs=1.5", "must be a whole number"),
        ("async.mode.x=1", "async.mode is a value and has no keys"),
        ("async.train.max_staleness.a.b=1", "async.train.max_staleness is a value and has no keys"),
    ],
)
def test_an_override_that_cannot_be_planned_is_an_error_in_a_sentence(tmp_path, tried, words):
    result = CliRunner().invoke(APP, [str(left_by(tmp_path)), "--try", tried])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_a_run_whose_records_are_damaged_is_not_said_to_be_of_another_kind(tmp_path):
    run = left_by(tmp_path)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for seconds, words in ((-1.0, "these are no durations"), (None, "has the durations of 0 steps")):
        changed = [{**line, "async/step_seconds": seconds} for line in lines]
        (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, changed)))
        with pytest.raises(ValueError, match=words):
            command.plan_run(run)
    (run / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"there is no readable run\.json"):
        command.plan_run(run)


def test_what_is_written_does_not_go_through_a_link(tmp_path):
    theirs, out = tmp_path / "theirs", tmp_path / "out"
    theirs.write_text("theirs")
    out.mkdir()
    (out / "plan.json").symlink_to(theirs)
    result = CliRunner().invoke(APP, [str(left_by(tmp_path / "run")), "--output", str(out)])
    assert result.exit_code == 2
    assert "plan.json cannot be written: it is a symbolic link" in " ".join(result.output.split())
    assert theirs.read_text() == "theirs"
