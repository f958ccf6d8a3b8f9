import json
import os
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

from omegaconf import OmegaConf
from rich.console import Console
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.host import RLinfHost
from rlinf_async.lab.sweep import command
from rlinf_async.lab.sweep.cell import RunRecord
from rlinf_async.lab.sweep.plan import plan


def planned(tmp_path, *overrides, **changes):
    options = {"modes": "off,full", "seeds": 1, "output": tmp_path / "sweep", "config_dir": None, **changes}
    cfg = compose_config("metaworld_ppo_mlp", overrides, options["config_dir"])
    return plan(cfg, config_name="metaworld_ppo_mlp", overrides=overrides, **options)


def sweep(*arguments):
    return CliRunner().invoke(cli.app, ["sweep", "-n", "metaworld_ppo_mlp", *arguments])


def test_a_plan_has_every_setting_for_a_seed_before_the_next(tmp_path):
    made = planned(tmp_path, "runner.max_epochs=4", modes="ladder", seeds=2)
    assert [(cell.setting.name, cell.seed) for cell in made.cells] == [
        (name, seed) for seed in (0, 1) for name in ("off", "train", "train+rollout", "levels", "full")
    ]
    assert not (tmp_path / "sweep").exists()


def test_the_first_seed_is_the_configs_own_and_others_are_far_from_it(tmp_path):
    first, second = planned(tmp_path, "env.train.seed=5", modes="full", seeds=2).cells
    assert first.overrides[-2:] == ("actor.seed=1234", "env.train.seed=5")
    assert second.overrides[-2:] == ("actor.seed=2234", "env.train.seed=1005")


def test_the_commands_compose_and_put_each_run_into_its_directory(tmp_path):
    place = tmp_path / "it's, a {sweep}=1"
    for cell in planned(tmp_path, "runner.max_epochs=4", modes="all", output=place).cells:
        position = cell.command.index("--config-name")
        cfg = compose_config(cell.command[position + 1], cell.command[position + 2 :])
        assert cfg.runner.logger.log_path == str(place / f"{cell.setting.name}-seed0")
        assert cfg.runner.max_epochs == 4
        assert {level: cfg["async"][level].enabled for level in cell.setting.flags} == cell.setting.flags


def test_a_step_of_a_config_is_as_many_environment_steps_as_its_asynchronous_runs_report():
    workload = RLinfHost().workload(compose_config("metaworld_ppo_vla", ["env.train.rollout_epoch=2"]))
    assert workload.stock.env_steps == 8 * 20 * 2


@pytest.mark.parametrize(
    ("backends", "override"),
    [
        ("[tensorboard]", ()),
        ("[wandb,tensorboard]", ()),
        ("[swanlab]", ("++runner.logger.logger_backends=[swanlab,tensorboard]",)),
        ("wandb", ("++runner.logger.logger_backends=[wandb,tensorboard]",)),
        ("null", ("++runner.logger.logger_backends=[tensorboard]",)),
    ],
)
def test_event_files_are_asked_for_where_the_config_does_not(backends, override):
    cfg = compose_config("metaworld_ppo_mlp", [f"runner.logger.logger_backends={backends}"])
    assert RLinfHost().workload(cfg).overrides == override


def test_the_digest_changes_with_the_config_and_only_with_it(tmp_path):
    (one,) = planned(tmp_path, modes="full").cells
    (same,) = planned(tmp_path, modes="full", output=tmp_path / "other").cells
    (other,) = planned(tmp_path, "algorithm.update_epoch=4", modes="full").cells
    assert one.config == same.config != other.config


@pytest.mark.parametrize(
    ("overrides", "changes", "words"),
    [
        ((), {"modes": "off,ful"}, "setting 'ful' is not one of .*; did you mean 'full'"),
        ((), {"seeds": 0}, "--seeds=0 must be at least 1"),
        (("async.mode=full",), {}, "the override async.mode=full is for the sweep to set; .* see --modes"),
        (
            ("++async.rollout.enabled=true",),
            {},
            r"the override \+\+async.rollout.enabled=true is for the sweep",
        ),
        ((), {"modes": ""}, "setting '' is not one of"),
        ((), {"seeds": 1_000_000_000}, "this sweep has 2,000,000,000 runs, and 1,000 are the most"),
        ((), {"vary": [f"a.b={','.join(map(str, range(10_000)))}"]}, "this sweep has 20,000 runs"),
        ((), {"vary": ["async.mode=off,full"]}, "--vary async.mode is for the sweep to set; .* see --modes"),
        ((), {"vary": ["+actor.seed=4,5"]}, "--vary actor.seed is for the sweep to set; .* see --seeds"),
        (("~async",), {}, "the override ~async is for the sweep to set"),
        (("async=train",), {}, "the override async=train is for the sweep to set"),
        (("runner.logger.log_path=here",), {}, "runner.logger.log_path=here is for .* see --output"),
        (("actor.seed=3",), {}, "actor.seed=3 is for .* see --seeds"),
        (("runner.max_epochs=1",), {}, "runner.max_epochs=1 leaves nothing to measure.*nearest: 2"),
        (("runner.max_steps=1",), {}, "runner.max_steps=1 leaves nothing to measure"),
        (("runner.only_eval=true",), {}, "runner.only_eval=true trains nothing"),
        (("runner.task_type=reasoning",), {}, "runner.task_type='reasoning' has no asynchronous levels"),
        (("~env.train.total_num_envs",), {}, "the config gives no env.train.total_num_envs"),
        (
            ("reward.use_reward_model=true",),
            {},
            "setting full cannot run: reward.use_reward_model=True needs reward workers",
        ),
        (("async.rollout.shards=5",), {"modes": "off,train,rollout"}, "setting rollout cannot run: .*shards"),
        ((), {"vary": ["actor.micro_batch_size=32,}"]}, r"^--vary actor.micro_batch_size=} cannot be read;"),
        (
            (),
            {"vary": ["actor.micro_batch_size=[1,2"]},
            r"^--vary actor.micro_batch_size=\[1,2 cannot be read;",
        ),
        ((), {"vary": ["actor.micro_batch_size=8;9"]}, "^--vary actor.micro_batch_size=8;9 cannot be read;"),
        ((), {"vary": ["actor.micro_batch_size='8"]}, "^--vary actor.micro_batch_size='8 cannot be read;"),
        ((), {"vary": ["actor seed=1,2"]}, "^--vary actor seed=1 cannot be read;"),
        (
            (),
            {"vary": ["actor.x=range(1,4)"]},
            r"^--vary actor.x=range\(1,4\) stands for several values; write",
        ),
        ((), {"vary": ["actor.x=choice(1,4)"]}, r"^--vary actor.x=choice\(1,4\) stands for several values"),
        (
            (),
            {"vary": ["actor.micro_batch_siz=8,16"]},
            "cannot run: the config has no actor.micro_batch_siz; did you mean actor.micro_batch_size",
        ),
        (
            (),
            {"vary": ["actor.micro_batch_size=${x}"]},
            "actor.micro_batch_size reads x, which the config does not have; add it",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_starts(tmp_path, overrides, changes, words):
    with pytest.raises(ValueError, match=words):
        planned(tmp_path, *overrides, **changes)
    assert not (tmp_path / "sweep").exists()


def test_every_setting_is_checked_before_the_first_run_and_every_reason_is_told_once(tmp_path):
    with pytest.raises(ValueError, match="cannot run") as refused:
        planned(tmp_path, "async.rollout.shards=5", modes="off,train,rollout,full")
    (line,) = str(refused.value).splitlines()
    assert line.startswith("the settings rollout, full cannot run: ")
    with pytest.raises(ValueError, match="cannot run") as refused:
        planned(tmp_path, "reward.use_reward_model=true", "async.rollout.shards=5", modes="off,rollout,full")
    lines = str(refused.value).splitlines()
    assert all(line.count("cannot run: ") == 1 for line in lines)
    reasons = [line.partition("cannot run: ")[2] for line in lines]
    assert len(reasons) > 1
    assert len(set(reasons)) == len(reasons)


def test_what_a_machine_lacks_ends_a_sweep_before_its_first_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = sweep("--modes", "off,train,full", "actor.model.model_path=/path/to/model")
    assert result.exit_code == 2
    words = " ".join(result.output.split())
    assert words.count("/path/to/model does not exist; name the checkpoint") == 1
    assert "the settings off, train, full cannot run on this machine: actor.model.model_path=" in words
    assert not list(tmp_path.iterdir())


def test_a_sweep_whose_runs_are_done_is_shown_where_its_model_is_gone(tmp_path, monkeypatch):
    made = planned(tmp_path, "actor.model.model_path=/path/to/model")
    assert len(made.absent) == 1
    monkeypatch.setattr(type(made.cells[0]), "done", True)
    monkeypatch.setattr("rlinf_async.lab.sweep.command._write", lambda sweep: [])
    monkeypatch.setattr("rlinf_async.lab.sweep.command._show", lambda *args: None)
    monkeypatch.setattr("rlinf_async.lab.sweep.command._write_page", lambda *args: None)
    assert command.run(made, Console())


def test_what_a_level_refuses_may_be_swept_without_that_level(tmp_path):
    assert len(planned(tmp_path, "reward.use_reward_model=true", modes="off").cells) == 1


def test_a_place_that_is_not_the_sweeps_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file; choose a directory by --output"):
        planned(tmp_path, output=tmp_path / "file")
    with pytest.raises(ValueError, match="holds something that is no sweep; choose another --output"):
        planned(tmp_path, output=tmp_path)
    made = planned(tmp_path, "runner.max_epochs=4")
    with made.directory.claimed():
        pass
    assert json.loads((made.directory.path / "sweep.json").read_text())["overrides"] == [
        "runner.max_epochs=4"
    ]
    planned(tmp_path, "runner.max_epochs=4", modes="all", seeds=3)
    with pytest.raises(
        ValueError, match=r"another sweep, with overrides=\['runner.max_epochs=4'\] instead of"
    ):
        planned(tmp_path, "runner.max_epochs=5")


@pytest.mark.parametrize("name", ["sweep.json", "link"])
def test_a_record_of_a_sweep_that_is_none_is_named(tmp_path, name):
    place, record = tmp_path / "sweep", tmp_path / "sweep" / "sweep.json"
    place.mkdir()
    (place / name).write_text("[1]")
    if name == "link":
        record.symlink_to(place / name)
    with pytest.raises(ValueError, match=r"sweep\.json .*(says of no sweep|symbolic link).*another --output"):
        planned(tmp_path, output=place)
    record.unlink()
    os.mkfifo(record)
    with pytest.raises(ValueError, match=r"it is no file; choose another --output"):
        planned(tmp_path, output=place)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"status": "done"}', '{"overrides": 3}'])
def test_a_record_of_a_run_that_is_none_is_named(tmp_path, text):
    (tmp_path / "cell.json").write_text(text)
    with pytest.raises(ValueError, match=r"cell\.json is no record of a run of a sweep; remove it"):
        RunRecord.read(tmp_path)


def test_a_config_of_the_users_is_found_by_the_runs_wherever_they_are_started(tmp_path, monkeypatch):
    OmegaConf.save(compose_config("metaworld_ppo_mlp", []), tmp_path / "metaworld_ppo_mlp.yaml")
    monkeypatch.chdir(tmp_path.parent)
    (cell,) = planned(tmp_path, modes="full", config_dir=Path(tmp_path.name)).cells
    assert cell.source == ("--config-name", "metaworld_ppo_mlp", "--config-dir", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--modes", "of"), "did you mean 'off'"),
        (("async.mode=full",), "see --modes"),
        (("nonsense=1",), "nonsense"),
        (("runner.max_epochs=2,3",), "runner.max_epochs"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_one(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    result = sweep(*arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("outcome", "status"), [(True, 0), (False, 1), (KeyboardInterrupt(), 130)])
def test_the_exit_status_says_how_it_went(tmp_path, monkeypatch, outcome, status):
    def run(planned, console):
        assert planned.directory.path == Path("sweeps/metaworld_ppo_mlp")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlinf_async.lab.sweep.command.run", run)
    assert sweep("--modes", "full").exit_code == status
