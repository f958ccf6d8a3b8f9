import json
import os
from pathlib import Path

import pytest

from rlinf_async.observe.events import Status
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir


def test_what_an_earlier_run_said_of_itself_goes_when_another_begins(tmp_path):
    earlier, metrics = RunDir(tmp_path), {"b": 2, "a": 1}
    for directory in (earlier.trace, earlier.stacks):
        directory.mkdir()
    earlier.begin({"steps": 1}, title="first", versions={})
    earlier.write_step(1, 2)
    earlier.write_summary({"steps": 1})
    earlier.log(1, metrics)
    earlier.failures.write_text("{}\n")
    again = RunDir(tmp_path)
    again.begin({"steps": 2}, title="second", versions={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "run.json"]
    facts = RunReader(again.path).facts()
    assert (facts["title"], facts["steps"]) == ("second", 2)
    assert {"began", "versions", "python"} <= facts.keys()
    assert RunReader(again.path).metrics() == [{"step": 1, "a": 1.0, "b": 2.0}]


def test_the_faults_of_a_run_stay_when_it_goes_on(tmp_path):
    records = RunDir(tmp_path)
    records.failures.write_text("{}\n")
    records.begin({}, title="the same", versions={}, fresh=False)
    assert records.failures.exists()


def test_what_is_written_is_read_and_what_is_not_there_is_empty(tmp_path):
    records = RunDir(tmp_path)
    reader = RunReader(tmp_path)
    assert (reader.status(), reader.metrics(), reader.faults(), reader.problems) == (None, [], [], [])
    status = Status(time=7.0, step=3, total=9, processes={"x": None})
    records.write_status(status)
    assert RunReader(records.path).status() == status
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]
    assert json.loads(records.status.read_text())["processes"] == {"x": None}


def test_a_run_says_how_many_cores_it_may_use(tmp_path):
    records = RunDir(tmp_path)
    records.begin({"steps": 3}, title="a run", versions={})
    assert RunReader(records.path).facts()["cores"] == len(os.sched_getaffinity(0))


def test_a_disk_that_is_full_or_gone_is_a_warning_and_no_end(tmp_path):
    records = RunDir(tmp_path / "gone")
    for full, why in ((records.metrics, "No such"), (Path("/dev/full"), "it is no file")):
        records.metrics = full
        with pytest.warns(UserWarning, match=f"cannot be written: {why}"):
            records.log(1, {"loss": 0.5})
    with pytest.warns(UserWarning, match=r"status.json cannot be written: No such file"):
        records.write_step(1, 2)


def trained(tmp_path):
    """A run directory in which a run has trained, beside a folder of somebody's."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "work").write_text("of years")
    run = RunDir(tmp_path / "runs" / "run")
    run.path.mkdir(parents=True)
    run.begin({}, title="", versions={})
    run.log(1, {"loss": 1})
    return run


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("how", ["dots", "absolute", "a link above it", "a link at earlier"])
def test_nothing_outside_of_a_run_directory_is_put_aside(tmp_path, how, goes_on):
    run = trained(tmp_path)
    precious = tmp_path / "precious"
    weights = {
        "dots": run.path / ".." / ".." / "precious" / "work",
        "absolute": precious / "work",
        "a link above it": run.path / "try" / "work",
        "a link at earlier": None,
    }[how]
    if how == "a link above it":
        (run.path / "try").symlink_to(precious)
    if how == "a link at earlier":
        (run.path / "earlier").symlink_to(precious)
    with pytest.raises(
        ValueError, match=r"leads out of the run directory .*precious.* choose a place inside"
    ):
        run.set_aside(weights=weights, goes_on=goes_on, say=pytest.fail)
    assert [path.name for path in precious.iterdir()] == ["work"]
    assert run.facts.is_file()


def test_a_link_is_put_aside_and_what_it_leads_to_stays(tmp_path):
    run = trained(tmp_path)
    (run.path / "checkpoints").symlink_to(tmp_path / "precious")
    run.config.symlink_to(tmp_path / "precious" / "work")
    run.set_aside(weights=run.path / "checkpoints", say=lambda _: None)
    assert (tmp_path / "precious" / "work").read_text() == "of years"
    assert (run.path / "earlier" / "1" / "checkpoints").is_symlink()
    assert not run.config.is_symlink()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("facts", [None, "{}", "[1]", '{"began":'])
def test_files_of_somebody_else_are_put_aside_before_a_run_writes_over_them(tmp_path, facts, goes_on):
    run, said = RunDir(tmp_path), []
    run.config.write_text("mine: 3")
    (run.trace / "mine").mkdir(parents=True)
    for file in (run.metrics, tmp_path / "policy.pt", tmp_path / "notes.txt"):
        file.write_text("mine")
    if facts is not None:
        run.facts.write_text(facts)
    run.set_aside(weights=tmp_path / "policy.pt", goes_on=goes_on, say=said.append)
    run.write_config("ours: 3")
    run.begin({}, title="ours", versions={}, fresh=not goes_on)
    kept = tmp_path / "earlier" / "1"
    assert (kept / "config.yaml").read_text() == "mine: 3"
    assert (kept / "trace" / "mine").is_dir()
    assert (kept / "metrics.jsonl").read_text() == "mine"
    assert run.metrics.exists() is goes_on
    assert (kept / "policy.pt").exists() is not goes_on
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert len(said) == 1
    assert f"config.yaml, {'run.json, ' if facts else ''}trace" in said[0]
    assert f"which no run has recorded in {tmp_path} are in {kept} now" in said[0]


def test_a_run_that_has_trained_nothing_leaves_nothing_aside(tmp_path):
    run = RunDir(tmp_path)
    run.write_config("ours: 3")
    run.begin({}, title="ours", versions={})
    run.set_aside(weights=tmp_path / "policy.pt", say=pytest.fail)
    RunDir(tmp_path / "new").set_aside(say=pytest.fail)
    assert not (tmp_path / "earlier").exists()
    assert not (tmp_path / "new").exists()
