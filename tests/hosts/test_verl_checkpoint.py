"""Which checkpoint a run under veRL goes on from, in veRL's layout."""

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rlinf_async.hosts.verl.checkpoint import LATEST_STEP_FILE, claim, note_latest, resume_point, step_folder
from rlinf_async.observe.attempt import PLACE_VARIABLE, read_attempt
from rlinf_async.ray_runtime.checkpoints.checkpoint_folder import written_aside


def config(tmp_path: Path, **trainer):
    given = {"resume_mode": "auto", "resume_from_path": None, "default_local_dir": str(tmp_path / "saved")}
    given["save_freq"] = 2
    return OmegaConf.create({"trainer": {**given, **trainer}, "vla": {"run_dir": str(tmp_path / "run")}})


def save(cfg, step: int) -> Path:
    folder = step_folder(cfg, step)
    with written_aside(folder, {}) as aside:
        (aside / "actor").mkdir()
        (aside / "actor" / "weights").write_bytes(b"1234")
    return folder


def test_a_run_killed_before_it_has_noted_the_newest_goes_on_from_it(tmp_path):
    cfg = config(tmp_path)
    save(cfg, 2)
    note_latest(cfg, 2)
    newest = save(cfg, 4)
    assert resume_point(cfg) == (newest, 4)


def test_one_that_is_not_whole_is_named_and_the_one_before_is_taken(tmp_path):
    cfg, said = config(tmp_path), []
    whole, broken = save(cfg, 2), save(cfg, 4)
    note_latest(cfg, 4)
    (broken / "actor" / "weights").write_bytes(b"12")
    assert resume_point(cfg, say=said.append) == (whole, 2)
    assert [str(broken) in sentence for sentence in said] == [True]
    (step_folder(cfg, 2) / "actor" / "weights").unlink()
    assert resume_point(cfg) == (None, 0)


def test_one_that_verl_has_written_by_itself_counts_where_it_is_the_latest(tmp_path):
    cfg = config(tmp_path)
    assert resume_point(cfg) == (None, 0)
    save(cfg, 2)
    for step in (6, 8):  # that of step 8 was interrupted
        (step_folder(cfg, step) / "actor").mkdir(parents=True)
    note_latest(cfg, 6)
    assert resume_point(cfg) == (step_folder(cfg, 6), 6)
    assert resume_point(config(tmp_path, resume_mode="disable")) == (None, 0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("content", [None, b"1" * 999, b"\xff"])
def test_a_note_that_cannot_be_read_is_named(tmp_path, content):
    cfg, said = config(tmp_path), []
    note = save(cfg, 2).parent / LATEST_STEP_FILE
    os.mkfifo(note) if content is None else note.write_bytes(content)
    assert resume_point(cfg, say=said.append) == (step_folder(cfg, 2), 2)
    assert [str(note) in sentence for sentence in said] == [True]


@pytest.mark.parametrize("text", ["9", "", "x"])
def test_a_note_of_nothing_is_named(tmp_path, text):
    cfg, said = config(tmp_path), []
    whole = save(cfg, 2)
    (whole.parent / LATEST_STEP_FILE).write_text(text)
    assert resume_point(cfg, say=said.append) == (whole, 2)
    assert [repr(text) in sentence for sentence in said] == [True]


def test_one_that_is_named_must_be_whole(tmp_path):
    cfg = config(tmp_path, resume_mode="resume_path", resume_from_path=str(step_folder(config(tmp_path), 2)))
    folder = save(cfg, 2)
    assert resume_point(cfg) == (folder, 2)
    (folder / "actor" / "weights").unlink()
    with pytest.raises(ValueError, match="no whole checkpoint: actor/weights is missing"):
        resume_point(cfg)
    (step_folder(cfg, 7) / "actor").mkdir(parents=True)  # as veRL's trainers write it, without a list
    cfg.trainer.resume_from_path = str(step_folder(cfg, 7))
    assert resume_point(cfg) == (step_folder(cfg, 7), 7)
    for wrong in (tmp_path, step_folder(cfg, 8)):
        cfg.trainer.resume_from_path = str(wrong)
        with pytest.raises(ValueError, match="must be a folder global_step_N with a folder actor"):
            resume_point(cfg)


def test_a_run_that_saves_nothing_claims_no_place_for_it(tmp_path):
    claim(config(tmp_path, save_freq=-1))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_claim_tidies_and_tells_whoever_has_started_the_run(tmp_path, monkeypatch):
    cfg = config(tmp_path)
    (tmp_path / "saved" / ".global_step_4.writing").mkdir(parents=True)
    monkeypatch.setenv(PLACE_VARIABLE, str(tmp_path / "told"))
    claim(cfg)
    claim(cfg)  # the command before Ray starts, and the trainer
    assert not (tmp_path / "saved" / ".global_step_4.writing").exists()
    told = read_attempt(tmp_path / "told")
    assert told is not None
    assert (told.run_dir, told.checkpoints) == (str(tmp_path / "run"), str(tmp_path / "saved"))
    assert told.resume == "trainer.resume_mode=auto"
