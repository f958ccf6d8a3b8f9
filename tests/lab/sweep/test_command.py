import json

import pytest
from rich.console import Console

from rlinf_async.lab.process import last_words
from rlinf_async.lab.sweep import cell, command
from tests.lab.sweep.fakes import FakeTraining, sweep


@pytest.fixture
def training(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "write_report", lambda runs, out: None)
    return FakeTraining(tmp_path / "fake", monkeypatch)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "sweep"


def run(planned):
    """Whether it succeeded, and what it has printed."""
    console = Console(record=True, width=80)
    succeeded = command.run(planned, console)
    return succeeded, console.export_text()


def test_every_setting_is_run_before_a_seed_is_added(training, home):
    succeeded, _ = run(sweep(home, "train,full", seeds=2))
    assert succeeded
    assert training.calls() == ["train-seed0", "full-seed0", "train-seed1", "full-seed1"]


def test_a_run_gets_the_config_the_setting_a_seed_and_a_directory_of_its_own(training, home):
    run(sweep(home, "train+rollout", seeds=2, overrides=("runner.max_epochs=3",)))
    words = (home / "train+rollout-seed1" / "output.log").read_text()
    assert "--config-name some runner.max_epochs=3 async.mode=full async.train.enabled=true" in words
    assert "async.skip.masked=false actor.seed=1007 runner.logger.log_path=" in words
    record = json.loads((home / "train+rollout-seed1" / "cell.json").read_text())
    assert record["status"] == "done"
    assert record["exit_status"] == 0
    assert "actor.seed=1007" in record["overrides"]


def test_the_results_are_shown_and_written(training, home):
    training.rates({"train-seed0": 200.0, "full-seed0": 300.0})
    _, shown = run(sweep(home))
    assert "[2/2] full seed 0: 300 fresh env steps/s" in shown
    assert "| full | 300 |" in (home / "table.md").read_text()
    assert (home / "table.csv").read_text().count("\n") == 3


def test_what_is_done_is_not_run_again(training, home):
    run(sweep(home))
    training.calls()
    succeeded, shown = run(sweep(home))
    assert succeeded
    assert training.calls() == []
    assert "2 runs, one after the other, 2 of them are done" in shown
    run(sweep(home, "train,rollout,full", seeds=2))
    assert training.calls() == ["rollout-seed0", "train-seed1", "rollout-seed1", "full-seed1"]


def test_a_run_whose_overrides_or_config_have_changed_is_run_again_and_said_to_be(training, home):
    run(sweep(home))
    path = home / "full-seed0" / "cell.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "overrides": record["overrides"][:-1]}))
    training.calls()
    _, shown = run(sweep(home))
    assert training.calls() == ["full-seed0"]
    assert "full seed 0: its overrides or its config have changed, it is run again" in shown
    run(sweep(home, config="another"))
    assert training.calls() == ["train-seed0", "full-seed0"]


def test_a_failed_run_is_shown_with_its_error_while_the_others_go_on(training, home):
    training.fail("train-seed0")
    succeeded, shown = run(sweep(home))
    assert not succeeded
    assert training.calls() == ["train-seed0", "full-seed0"]
    error = "train seed 0 failed: exit status 3: ValueError: the simulator is out of fuel; log: "
    assert error in shown
    assert error in (home / "table.md").read_text()
    assert "| train | failed |" in (home / "table.md").read_text()


def test_a_failed_run_is_tried_again_from_an_empty_directory(training, home):
    training.fail("train-seed0")
    run(sweep(home))
    (home / "train-seed0" / "metrics.jsonl").write_text("of the first attempt")
    training.fail("train-seed0", fails=False)
    training.calls()
    succeeded, _ = run(sweep(home))
    assert succeeded
    assert training.calls() == ["train-seed0"]
    assert "failed" not in (home / "table.md").read_text()


def test_a_run_that_ends_well_but_logs_nothing_has_failed(training, home):
    training.rates({"full-seed0": 0.0})
    succeeded, shown = run(sweep(home))
    assert not succeeded
    assert "full seed 0: failed: the run has left no " in shown


def test_an_interrupt_leaves_what_is_done_and_the_next_start_goes_on(training, home, monkeypatch):
    planned = sweep(home)
    really = cell.run_command

    def interrupted(command, log, **options):
        if "full-seed0" in str(log):
            raise KeyboardInterrupt
        return really(command, log, **options)

    with monkeypatch.context() as patched:
        patched.setattr(cell, "run_command", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(planned)
    assert training.calls() == ["train-seed0"]
    assert "| train | 100 |" in (home / "table.md").read_text()
    run(planned)
    assert training.calls() == ["full-seed0"]


def test_two_processes_do_not_run_a_sweep_at_once(training, home):
    planned = sweep(home)
    with planned.directory.claimed(), pytest.raises(ValueError, match="another process is running the sweep"):
        run(planned)
    assert run(planned)[0]


def test_the_report_is_of_the_runs_that_are_done(training, home, monkeypatch):
    asked = []
    monkeypatch.setattr(command, "write_report", lambda runs, out: asked.append((runs, out)))
    training.fail("train-seed0")
    run(sweep(home))
    assert asked == [([home / "full-seed0"], home / "report.html")]


def test_a_sweep_without_a_report_has_still_succeeded(training, home, monkeypatch):
    def refuse(*_):
        raise ValueError("no ink")

    monkeypatch.setattr(command, "write_report", refuse)
    succeeded, shown = run(sweep(home))
    assert succeeded
    assert "no report.html: no ink" in shown


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("Traceback:\n  File\nKeyError: 'a'\nshutting down\n", "KeyError: 'a'"),
        ("error: async.mode='ful' must be\n", "error: async.mode='ful' must be"),
        (
            "(EnvGroup pid=12) ray.exceptions.RayTaskError(OSError): disk\n\n",
            "(EnvGroup pid=12) ray.exceptions",
        ),
        ("step 1\nKilled\n", "Killed"),
        ("", "it has printed nothing"),
    ],
)
def test_the_end_of_a_log_is_its_last_error_or_its_last_line(tmp_path, text, last):
    (tmp_path / "output.log").write_text(text)
    assert last_words(tmp_path / "output.log").startswith(last)
