"""A run from outside: what it says of itself, and the stacks of its processes."""

import io
import json

import pytest
from rich.console import Console

from rlinf_async.observe.pace import seconds
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.reading.status import (
    progress_of,
    show_watched,
    status_facts,
    status_of,
    watch,
    who_does_what,
)
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.state import Diagnosis

SAID = {
    "time": 1000.0,
    "driver": 4711,
    "step": 3,
    "total": 9,
    "still_s": 0.2,
    "processes": {
        "env worker 0": {"pid": 1, "ended": 5, "open": [{"kind": "step", "seconds": 4.0, "shard": 2}]},
        "learner rank 0": None,
    },
}


def said(run, **changes):
    run.mkdir(exist_ok=True)
    (run / "status.json").write_text(json.dumps(SAID | changes))
    return run


def test_a_run_that_moves_says_what_every_process_does(tmp_path):
    assert status_of(said(tmp_path), now=1002.0) == [
        "step 3 of 9; it moves (seen 2.0 s ago)",
        "  env worker 0: shard 2 stepping for 4.0 s",
        "  learner rank 0: does not answer",
    ]


def test_a_stalled_run_says_for_how_long_and_a_dead_driver_that_it_is_silent(tmp_path):
    assert "no activity has ended for 63 s" in status_of(said(tmp_path, still_s=63.0), now=1001.0)[0]
    assert "has died or hangs" in status_of(said(tmp_path), now=1100.0)[0]


def test_a_run_that_speaks_when_a_step_ends_is_given_the_time_of_some_steps(tmp_path):
    records = RunDir(tmp_path)
    records.write_step(3, 9)
    records.log(3, {"async/step_seconds": 60.0})
    now = RunReader(records.path).status().time
    states = [status_facts(tmp_path, now=now + seconds)["state"] for seconds in (0.0, 150.0, 200.0)]
    assert states == ["moving", "moving", "silent"]
    assert status_of(tmp_path, now=now)[0] == "step 3 of 9; it moves (seen 0.0 s ago)"


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (None, "The run has ended"),
        ("finished", "The run has ended"),
        ("failed", "The run has failed"),
        ("interrupted", "The run was interrupted"),
        ("terminated", "The run was asked to end, and has ended"),
        ("of another version", "The run has ended"),
        (["damaged"], "The run has ended"),
    ],
)
def test_how_a_run_has_ended_is_said(tmp_path, how, words):
    end(said(tmp_path), ended=how)
    assert status_of(tmp_path) == [f"{words}: 9 steps in 80 s, 4 of 4 trajectories trained."]


def test_a_run_says_what_has_failed(tmp_path):
    said(tmp_path)
    fault = {"time": 990.0, "process": "env worker 0", "what": "env failed", "error": "X"}
    fault["action"] = "built anew"
    (tmp_path / "failures.jsonl").write_text(json.dumps(fault) + "\n")
    line = "  1 fault: env failed 1; the last 12 s ago: env worker 0: env failed (X); built anew"
    assert status_of(tmp_path, now=1002.0)[1] == line
    end(tmp_path)
    assert status_of(tmp_path, now=1002.0)[1:] == [line]
    assert status_facts(tmp_path, now=1002.0)["faults"]["last"] == fault


def reported(run, *, steps):
    for step in range(1, steps + 1):
        metrics = {"async/step_seconds": 100.0 if step == 1 else 5.0, "async/env_steps": 50.0}
        RunDir(run).log(step, {**metrics, "env/success_once": step / 10})
    return run


def end(run, **facts):
    ended = {"steps": 9, "seconds": 80.0, "trajectories": {"trained": 4, "produced": 4}}
    (run / "summary.json").write_text(json.dumps(ended | facts))


def test_a_run_says_how_fast_it_goes_and_how_long_it_takes(tmp_path):
    lines = status_of(reported(said(tmp_path), steps=3), now=1002.0)
    assert lines[1] == "  10 fresh env steps/s, 5.00 s a step, success 30%, 0:30 left"


def test_a_status_is_plain_data(tmp_path):
    facts = status_facts(reported(said(tmp_path), steps=3), now=1002.0)
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["state"], facts["step"], facts["total"], facts["seen_s"]) == ("moving", 3, 9, 2.0)
    assert facts["pace"] == {"env_steps_per_second": 10.0, "step_s": 5.0, "left_s": 30.0, "success": 0.3}
    assert facts["processes"] == {
        "env worker 0": {
            "doing": "shard 2 stepping for 4.0 s",
            "open": SAID["processes"]["env worker 0"]["open"],
        },
        "learner rank 0": {"doing": "does not answer", "open": None},
    }


@pytest.mark.parametrize(
    ("still_s", "now", "state"), [(0.2, 1001.0, "moving"), (5.0, 1001.0, "still"), (0.2, 1100.0, "silent")]
)
def test_a_status_has_one_word_for_what_is_going_on(tmp_path, still_s, now, state):
    assert status_facts(said(tmp_path, still_s=still_s), now=now)["state"] == state


def test_the_status_of_a_run_that_has_ended_is_its_summary(tmp_path):
    end(reported(said(tmp_path), steps=3))
    facts = status_facts(tmp_path)
    assert (facts["state"], facts["step"], facts["summary"]["seconds"]) == ("ended", 9, 80.0)


def looks(run, *, until):
    """Looks at a run that ends after so many waits of no time."""
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == until:
            end(run)

    return watch(run, every_s=7.0, wait=wait), waits


def test_a_run_is_watched_until_it_has_ended(tmp_path):
    found, waits = looks(said(tmp_path), until=2)
    assert [facts["state"] for facts in found] == ["silent", "silent", "ended"]
    assert waits == [7.0, 7.0]


def test_a_pipe_gets_a_line_for_each_look(tmp_path):
    console = Console(file=io.StringIO(), width=60)
    show_watched(looks(reported(said(tmp_path), steps=3), until=1)[0], console)
    first, last = console.file.getvalue().splitlines()
    assert "step 3 of 9" in first
    assert first.endswith("0:30 left")
    assert "The run has ended: 9 steps in 80 s" in last


def test_a_terminal_gets_every_process_and_an_interrupt_ends_it_quietly(tmp_path):
    def interrupted():
        yield status_facts(said(tmp_path))
        raise KeyboardInterrupt

    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    show_watched(interrupted(), console)
    assert "env worker 0: shard 2 stepping for 4.0 s" in console.file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, None, "is no directory"),
        ("other.txt", "", "no run directory"),
        ("run.json", "{}", "only just started"),
        ("status.json", '{"time": 1', "its records are damaged.*status.json is cut off"),
        ("status.json", "[]", "its records are damaged.*status.json has content that no run has written"),
        ("run.json", "\ufeff{}", "its records are damaged.*run.json is cut off or damaged"),
    ],
)
def test_a_directory_that_says_nothing_is_refused_with_a_reason(tmp_path, name, content, message):
    run = tmp_path / "run"
    if name is not None:
        run.mkdir()
        (run / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        status_of(run)


@pytest.mark.parametrize(
    ("summary", "line"),
    [
        ({"steps": 5, "seconds": 2.0}, "The run has ended: 5 steps in 2.0 s."),
        ({"steps": -5, "seconds": 2.0, "trajectories": {"trained": 3, "produced": 4}}, "3 of 4 trajectories"),
        ({"steps": 5, "seconds": -2.0, "trajectories": {"trained": -3, "produced": 4}}, "ended: 5 steps."),
        ({"steps": "x"}, "its summary.json lacks the numbers."),
    ],
)
def test_a_number_that_no_run_has_written_is_not_repeated(tmp_path, summary, line):
    (tmp_path / "summary.json").write_text(json.dumps({"ended": "finished", **summary}))
    first = status_of(tmp_path)[0]
    assert line in first
    assert "None" not in first
    assert "-" not in first


def test_a_step_beyond_the_last_leaves_no_time(tmp_path):
    (tmp_path / "status.json").write_text('{"time": 1, "step": 9, "total": 3}')
    step = '{"step": %d, "async/step_seconds": 2.0, "async/env_steps": 4.0}\n'
    (tmp_path / "metrics.jsonl").write_text("".join(step % number for number in range(1, 6)))
    assert "0:00 left" in " ".join(status_of(tmp_path, now=2.0))
    (tmp_path / "status.json").write_text('{"time": 1, "step": -9, "total": 3}')
    with pytest.raises(ValueError, match="has no status and no summary"):
        status_of(tmp_path)


def doing(*spans, ended=0, **facts):
    return {"pid": 1, "ended": ended, "open": [dict(span) for span in spans], **facts}


def span(kind, age, **facts):
    return {"kind": kind, "seconds": age, **facts}


def lines(**processes):
    return dict(who_does_what(processes))


def test_shards_that_do_the_same_are_counted_and_the_longest_is_named():
    said = doing(span("step", 61.0, shard=3), span("step", 2.0, shard=1), span("gate", 30.0, shard=0))
    assert (
        lines(env=said)["env"]
        == "2 shards stepping (longest: shard 3, for 61 s), shard 0 at the gate for 30 s"
    )


def test_the_books_are_told_by_whoever_keeps_them():
    said = doing(version=4, trajectories="produced 3 = trained 3")
    assert lines(channel=said)["channel"] == "version 4; produced 3 = trained 3"


def test_progress_is_known_of_those_who_answer():
    assert progress_of({"a": doing(ended=3), "b": None}) == {"a": 3}


def test_the_busiest_part_bounds_a_run():
    shares = {"env": 0.93, "inference": 0.4, "learner": 0.6, "publication": 0.0}
    found = Diagnosis.of(shares)
    assert found.saturated
    assert found.sentence() == "Environments bound this run: the busiest shard works 93% of the time."


def test_a_run_in_which_everybody_waits_is_said_to_be_bound_by_nothing():
    found = Diagnosis.of({"env": 0.3, "learner": 0.45})
    assert not found.saturated
    assert found.sentence("this step") == (
        "Nothing is busy all the time in this step: of the learner, the busiest rank works 45% of the time."
    )


def test_a_change_of_units_is_where_it_is_said():
    ages = (9.94, 9.96, 10.0, 599.4, 600.0, 3660.0, 7199.0, 7200.0, 36000.0)
    assert [seconds(age) for age in ages] == [
        "9.9 s", "10.0 s", "10 s", "599 s", "10 min", "61 min", "120 min", "2.0 h", "10.0 h",
    ]  # fmt: skip


def test_facts_of_a_process_without_shards_are_told_one_after_another():
    said = doing(span("send", 1.0, batch=2, version=3, size=4))
    assert lines(learner=said)["learner"] == "sending weights for 1.0 s, batch 2, version 3, size 4"
    said = doing(span("fetch", 9.0, batch=5))
    assert lines(learner=said)["learner"] == "waiting for trajectories for 9.0 s, batch 5"


def test_a_kind_without_words_is_called_by_its_name():
    assert lines(x=doing(span("dream", 1.0)))["x"] == "dream for 1.0 s"
    assert lines(x=doing(span("dream", 1.0, shard=2)))["x"] == "shard 2 dream for 1.0 s"
    both = doing(span("dream", 1.0, shard=2), span("dream", 2.0, shard=1))
    assert lines(x=both)["x"] == "2 shards dream (longest: shard 1, for 2.0 s)"


def test_a_process_in_which_nothing_is_open_is_between_two_tasks():
    assert lines(x=doing())["x"] == "between two tasks"


def test_what_a_learner_is_in_hides_what_it_is_part_of():
    def said(*kinds):
        return lines(x=doing(*(span(kind, 1.0) for kind in kinds)))["x"]

    for inner, words in (("micro-batch", "in a micro-batch"), ("optimizer step", "in an optimizer step")):
        for outer in ("accept", "finish"):
            assert said("fetch", outer, inner) == f"{words} for 1.0 s"
    for outer in ("accept", "finish"):
        assert said("fetch", outer) == "training for 1.0 s"
