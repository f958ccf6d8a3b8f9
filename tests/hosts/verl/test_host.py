"""The host that commands ask, and where runs go on."""

import sys
from types import ModuleType

import pytest

pytest.importorskip("omegaconf", reason="OmegaConf is not installed")

from omegaconf import OmegaConf
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.hosts import host
from rlinf_async.hosts.verl.checkpoint import note_latest, resume_point, step_folder
from rlinf_async.hosts.verl.host import VerlHost
from rlinf_async.hosts.verl.recognition import another_mode
from rlinf_async.observe.ending import RunFailed, recorded
from rlinf_async.observe.run_dir import RunDir


def trainer(**changes):
    return OmegaConf.create({"trainer": {"resume_mode": "auto", "resume_from_path": None, **changes}})


def with_mode(mode, **more):
    return OmegaConf.create({"trainer": {"v1": {"trainer_mode": mode}}, "actor_rollout_ref": {}, **more})


def test_a_config_of_verls_is_known_whichever_trainer_it_asks_for():
    for mode in ("vla_async", "sync"):
        assert isinstance(host.host_of(with_mode(mode)), VerlHost)
    for other in ({"trainer": {"v1": {"trainer_mode": "sync"}}}, {"trainer": 3}, {"host": "local"}):
        assert not VerlHost().serves(OmegaConf.create(other))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        # The blocks of verl-vla's `train/sac`, and of its `record`, which has no trainer.
        ({"cluster": {"env": {}, "actor_rollout_ref": {}}, "trainer": {}, "ray_kwargs": {}}, "verl-vla"),
        ({"cluster": {"env": {}}}, "verl-vla"),
        # Of verl.experimental.vla's `rob_ppo_trainer`, which has those of veRL's own, too.
        ({"trainer": {}, "actor_rollout_ref": {}, "env": {"disagg_sim": {}, "train": {}}}, "v0.7.0"),
    ],
)
def test_a_config_of_a_program_near_verl_is_told_what_it_is_and_where_to_go(config, said):
    config = OmegaConf.create({**config, "async": {"mode": "full"}})
    with pytest.raises(ValueError, match=f"{said}.*trainer_mode=vla_async.*docs/verl.md"):
        host.host_of(config)


@pytest.mark.parametrize(
    "text",
    [
        # As of verl-vla's act_sac.yaml, and of an example that changes nothing of what it is made of.
        "defaults: [/train/sac@_global_]\ncluster: {actor_rollout_ref: {actor: {}}}\n",
        "hydra: {searchpath: ['pkg://verl_vla.workflows.config']}\ndefaults: [/train/sft@_global_]\n",
    ],
)
def test_a_file_of_verl_vlas_is_known_though_what_it_is_made_of_is_not_here(text, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    result = CliRunner().invoke(cli.app, ["explain", "--config-dir", str(tmp_path), "-n", "mine"])
    assert result.exit_code == 2
    assert "error: this is a config of verl-vla" in " ".join(result.output.split())


def test_a_file_of_nobody_that_cannot_be_composed_is_answered_as_before(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [nowhere]\n")
    result = CliRunner().invoke(cli.app, ["explain", "--config-dir", str(tmp_path), "-n", "mine"])
    assert "mine asks for nowhere, which is nowhere on the search path" in " ".join(result.output.split())


def test_a_key_of_the_old_experiment_in_a_config_of_ours_is_left_to_the_check_of_keys():
    assert isinstance(host.host_of(with_mode("vla_async", env={"rollout": {}})), VerlHost)


@pytest.mark.parametrize(
    ("mode", "block", "answer"),
    [
        ("vla_async", {"mode": "full"}, ""),
        ("sync", {"mode": "off"}, ""),
        ("sync", None, ""),
        ("vla_asyn", None, "did you mean 'vla_async'?"),
        ("sync", {"mode": "full"}, "'sync' reads no async block; use trainer.v1.trainer_mode=vla_async"),
        (None, {"mode": "train"}, "reads no async block"),
    ],
)
def test_a_trainer_that_reads_no_async_block_is_not_given_one(mode, block, answer):
    said = another_mode(with_mode(mode, **({"async": block} if block else {})))
    assert answer in said
    assert bool(said) == bool(answer)


def test_our_own_commands_name_the_trainer_that_they_train_with():
    pytest.importorskip("verl", reason="needs veRL")
    with pytest.raises(ValueError, match=r"veRL's own loop, which its own commands start; use .*vla_async"):
        VerlHost().explain(with_mode("sync"))


def test_making_the_host_imports_no_framework():
    before = set(sys.modules)
    assert VerlHost().remove() is None
    assert not {"verl", "rlinf"} & (set(sys.modules) - before)


def test_a_run_that_has_saved_nothing_begins_anew(tmp_path):
    assert resume_point(trainer(default_local_dir=str(tmp_path))) == (None, 0)


def test_a_run_goes_on_from_the_newest_complete_checkpoint(tmp_path):
    config = trainer(default_local_dir=str(tmp_path))
    for step in (2, 4):
        (step_folder(config, step) / "actor").mkdir(parents=True)
    note_latest(config, 2)  # that of step 4 was interrupted
    assert resume_point(config) == (tmp_path / "global_step_2", 2)
    config.trainer.resume_mode = "disable"
    assert resume_point(config) == (None, 0)


def test_a_checkpoint_is_named_by_its_path(tmp_path):
    folder = tmp_path / "global_step_7"
    (folder / "actor").mkdir(parents=True)
    asked = {"resume_mode": "resume_path", "default_local_dir": "elsewhere"}
    assert resume_point(trainer(resume_from_path=str(folder), **asked)) == (folder, 7)
    for wrong in (tmp_path, tmp_path / "global_step_8"):
        with pytest.raises(ValueError, match="must be a folder global_step_N with a folder actor"):
            resume_point(trainer(resume_from_path=str(wrong), **asked))


@pytest.mark.verl
def test_verls_own_checks_are_errors_that_a_command_can_print():
    pytest.importorskip("verl", reason="veRL is not installed")
    from tests.hosts.verl.configs import composed

    config = composed("actor_rollout_ref.rollout.val_kwargs.do_sample=true")
    config.actor_rollout_ref.rollout.temperature = 0
    with pytest.raises(ValueError, match="veRL refuses this config"):
        VerlHost().prepare(config)


@pytest.mark.verl
def test_a_resolved_config_is_plain_and_leaves_the_given_one_alone():
    pytest.importorskip("verl", reason="veRL is not installed")
    from tests.hosts.verl.configs import composed

    config = composed()
    resolved = VerlHost().resolved(config)
    assert resolved["async"]["rollout"]["shards"] == 2
    assert "rollout" not in config["async"]


def test_the_end_of_a_run_for_which_ray_does_not_start_is_not_that_of_the_one_before(tmp_path, monkeypatch):
    task_runner = ModuleType("task_runner")

    def not_started(config):
        raise RuntimeError("Ray has not started")

    task_runner.train = not_started
    monkeypatch.setitem(sys.modules, "rlinf_async.hosts.verl.task_runner", task_runner)
    earlier = RunDir(tmp_path)
    earlier.begin({}, title="an earlier run", versions={})
    earlier.log(1, {"loss": 1.0})
    earlier.write_summary({"steps": 1})
    cfg = trainer(resume_mode="disable")
    cfg.vla = {"run_dir": str(tmp_path)}
    cfg.ray_kwargs = {"ray_init": {"include_dashboard": None}}
    with pytest.raises(RunFailed, match="Ray has not started"), recorded(lambda: VerlHost().run_dir(cfg)):
        VerlHost().train(cfg)
    assert RunDir(tmp_path / "earlier" / "1").read(RunDir(tmp_path / "earlier" / "1").summary)["steps"] == 1
    assert earlier.read(earlier.summary)["ended"] == "failed"
