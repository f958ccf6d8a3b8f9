"""veRL's host, which commands ask, and its checks: beside veRL, and where it is not installed."""

import sys
from types import ModuleType

import pytest

pytest.importorskip("omegaconf", reason="OmegaConf is not installed")

from omegaconf import OmegaConf
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.hosts import host
from rlinf_async.hosts.verl import installation
from rlinf_async.hosts.verl.host import VerlHost
from rlinf_async.hosts.verl.recognition import another_mode
from rlinf_async.observe.ending import RunFailed, recorded
from rlinf_async.observe.reading.run_reader import RunReader
from rlinf_async.observe.run_dir import RunDir


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


def test_making_the_host_imports_no_framework():
    before = set(sys.modules)
    assert VerlHost().remove() is None
    assert not {"verl", "rlinf"} & (set(sys.modules) - before)


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
    cfg = OmegaConf.create(
        {
            "trainer": {"resume_mode": "disable"},
            "vla": {"run_dir": str(tmp_path)},
            "ray_kwargs": {"ray_init": {"include_dashboard": None}},
        }
    )
    with pytest.raises(RunFailed, match="Ray has not started"), recorded(lambda: VerlHost().run_dir(cfg)):
        VerlHost().train(cfg)
    assert RunReader(tmp_path / "earlier" / "1").summary()["steps"] == 1
    assert RunReader(earlier.path).summary()["ended"] == "failed"


def test_without_verl_it_is_one_line_and_no_failure(monkeypatch):
    monkeypatch.setattr(installation, "version", lambda _: None)
    (found,) = installation.checks()
    assert (found.name, found.status) == ("verl", "skip")
    assert "not installed" in found.detail


@pytest.mark.parametrize(
    ("value", "status"),
    [("auto", "ok"), ("rlinf_async", "ok"), ("other, rlinf_async", "ok"), ("none", "fail")],
)
def test_plugins_that_are_switched_off_are_found(value, status):
    found = installation.check_plugins({"VERL_USE_EXTERNAL_PLUGINS": value})
    assert found.status == status
    assert ("VERL_USE_EXTERNAL_MODULES" in found.mend) == (status == "fail")


@pytest.mark.parametrize("code", ["print(0)", "raise SystemExit('no driver')"])
def test_a_machine_without_a_gpu_is_told_how_verl_finds_its_cpu(code):
    found = installation.check_platform({}, code)
    assert (found.status, "VERL_PLATFORM=cpu" in found.mend) == ("warn", True)
    assert installation.check_platform({"VERL_PLATFORM": "cpu"}, code).status == "ok"


def test_a_machine_with_gpus_needs_no_word():
    found = installation.check_platform({}, "print(2)")
    assert (found.status, found.detail) == ("ok", "2 GPU")


def test_a_trainer_that_verl_does_not_know_is_a_failure_with_its_cause():
    found = installation.check_trainer("raise ValueError(\"Unknown trainer 'vla_async'\")")
    assert found.status == "fail"
    assert "Unknown trainer 'vla_async'" in found.detail


def test_plugins_that_are_switched_off_are_one_failure_and_not_three(monkeypatch):
    monkeypatch.setattr(installation, "version", lambda _: "0.9.1")
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "none")
    assert [(check.name, check.status) for check in installation.checks()] == [
        ("verl", "ok"),
        ("verl plugins", "fail"),
        ("verl trainer", "skip"),
        ("verl platform", "skip"),
    ]
