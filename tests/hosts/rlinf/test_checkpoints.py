import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlinf_async.hosts.rlinf.checkpoints import checkpoints, resolve_resume, resume_step, take_place
from rlinf_async.observe.attempt import PLACE_VARIABLE, Attempt, read_attempt
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import written_aside


def config(tmp_path: Path, resume_dir: str | None = None):
    logger = {"log_path": str(tmp_path / "run"), "experiment_name": "try"}
    return OmegaConf.create({"runner": {"logger": logger, "resume_dir": resume_dir}})


def save(cfg, step: int) -> Path:
    folder = checkpoints(cfg) / f"global_step_{step}"
    with written_aside(folder, {}) as aside:
        (aside / "actor").mkdir()
        (aside / "actor" / "weights").write_bytes(b"1234")
    return folder


def train(cfg, step: int) -> None:
    """Leave what a run leaves."""
    records = RunDir(cfg.runner.logger.log_path)
    records.path.mkdir(parents=True, exist_ok=True)
    records.begin({}, title="a run", versions={})
    records.log(step, {"loss": step})
    records.trace.mkdir()


@pytest.mark.parametrize("end", ["", "/"])
def test_the_step_is_that_of_the_directory(tmp_path, end):
    (tmp_path / "global_step_12" / "actor").mkdir(parents=True)
    assert resume_step(f"{tmp_path}/global_step_12{end}") == 12


@pytest.mark.parametrize("nothing", [None, ""])
def test_a_run_that_is_not_resumed_starts_at_zero(nothing):
    assert resume_step(nothing) == 0


def test_a_directory_of_another_name_is_refused():
    with pytest.raises(ValueError, match="must end in global_step_N, or be auto"):
        resume_step("/runs/last")


def test_a_directory_without_an_actor_is_refused(tmp_path):
    (tmp_path / "global_step_3").mkdir()
    with pytest.raises(ValueError, match="has no directory actor"):
        resume_step(str(tmp_path / "global_step_3"))


def test_one_that_is_named_must_be_whole_too(tmp_path):
    folder = save(config(tmp_path), 3)
    assert resume_step(str(folder)) == 3
    (folder / "actor" / "weights").write_bytes(b"12")
    with pytest.raises(ValueError, match=r"not whole: actor/weights has 2 bytes instead of 4.*auto"):
        resume_step(str(folder))


def test_auto_is_the_newest_whole_one_and_broken_ones_are_named(tmp_path):
    cfg = config(tmp_path, "auto")
    whole, broken = save(cfg, 2), save(cfg, 4)
    (broken / "actor" / "weights").unlink()
    broken_one, chosen = resolve_resume(cfg)
    assert str(broken) in broken_one
    assert "actor/weights is missing" in broken_one
    assert str(whole) in chosen
    assert cfg.runner.resume_dir == str(whole)


def test_auto_where_there_is_nothing_begins_anew_and_says_so(tmp_path):
    cfg = config(tmp_path, "auto")
    (remark,) = resolve_resume(cfg)
    assert "begins anew" in remark
    assert cfg.runner.resume_dir is None


def test_a_run_that_begins_anew_leaves_nothing_of_another_in_its_place(tmp_path):
    cfg, said = config(tmp_path), []
    train(cfg, 7)
    save(cfg, 7)
    for _ in range(2):  # the command checks a config, and RLinf's cluster does when it starts
        take_place(cfg, active=True, say=said.append)
    earlier = tmp_path / "run" / "earlier" / "1"
    assert [str(earlier) in remark for remark in said] == [True]
    assert RunReader(earlier).metrics()[0]["loss"] == 7
    assert (earlier / "try" / "checkpoints" / "global_step_7").is_dir()
    assert (earlier / "trace").is_dir()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "earlier", "try"]


@pytest.mark.parametrize("how", ["auto", "named"])
def test_a_run_that_goes_on_keeps_its_steps_and_checkpoints_and_the_trace_before(tmp_path, how):
    cfg, said = config(tmp_path, "auto"), []
    train(cfg, 7)
    folder = save(cfg, 7)
    if how == "named":
        cfg.runner.resume_dir = str(folder)
    take_place(cfg, active=True, say=said.append)
    run, earlier = tmp_path / "run", tmp_path / "run" / "earlier" / "1"
    assert folder.is_dir()
    assert RunReader(run).metrics() == RunReader(earlier).metrics()
    assert (earlier / "trace").is_dir()
    assert not (run / "trace").exists()


def test_a_run_that_goes_on_from_elsewhere_is_a_new_one_here(tmp_path):
    other = save(config(tmp_path / "other"), 3)
    cfg = config(tmp_path, str(other))
    train(cfg, 7)
    take_place(cfg, active=True, say=lambda _: None)
    assert not RunDir(tmp_path / "run").metrics.exists()
    assert other.is_dir()


def test_whoever_has_started_the_run_is_told_where_it_is(tmp_path, monkeypatch):
    cfg = config(tmp_path)
    take_place(cfg, active=True, say=lambda _: None)
    monkeypatch.setenv(PLACE_VARIABLE, str(tmp_path / "told"))
    take_place(cfg, active=True, say=lambda _: None)
    assert read_attempt(tmp_path / "told") == Attempt(
        run_dir=str(tmp_path / "run"),
        checkpoints=str(checkpoints(cfg)),
        resume="++runner.resume_dir=auto",
        newest=0,
    )
    assert set(json.loads((tmp_path / "told").read_text())) == {
        "run_dir",
        "checkpoints",
        "resume",
        "newest",
        "last_fault",
    }


def test_what_a_killed_run_has_left_half_written_goes(tmp_path):
    cfg = config(tmp_path, "auto")
    whole = save(cfg, 2)
    half = whole.with_name(".global_step_6.writing")
    half.mkdir()
    take_place(cfg, active=True, say=lambda _: None)
    assert whole.is_dir()
    assert not half.exists()


@pytest.mark.parametrize("how", ["dots", "a link", "a link above"])
def test_checkpoints_that_lead_out_of_the_run_directory_are_refused_and_untouched(tmp_path, how):
    cfg = config(tmp_path / "runs", "auto")
    precious = tmp_path / "precious" / "checkpoints"
    whole = precious / "global_step_1"
    half = precious / ".global_step_2.writing"
    for folder in (whole, half):
        folder.mkdir(parents=True)
    train(cfg, 7)
    if how == "dots":
        cfg.runner.logger.experiment_name = "../../precious"
    elif how == "a link":
        checkpoints(cfg).parent.mkdir(parents=True)
        checkpoints(cfg).symlink_to(precious)
    else:
        checkpoints(cfg).parent.symlink_to(precious.parent)
    with pytest.raises(ValueError, match="leads out of the run directory"):
        take_place(cfg, active=True, say=lambda _: None)
    take_place(cfg, active=False, say=lambda _: None)  # RLinf's own runner writes where it is told
    assert whole.is_dir()
    assert half.is_dir()
