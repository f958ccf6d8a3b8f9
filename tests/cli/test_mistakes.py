"""What people get wrong on the command line: each is answered in five lines at most, before Ray starts."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray
from filelock import FileLock
from omegaconf import DictConfig
from typer.testing import CliRunner

from rlinf_async import cli, compose
from rlinf_async.hosts.local.host import LocalHost
from rlinf_async.hosts.rlinf.host import RLinfHost
from rlinf_async.lab.sweep.plan import SweepDirectory
from rlinf_async.ray_runtime.cluster import template

DEMO = "metaworld_ppo_mlp"
LONGEST = 5
"""Lines of an answer."""

SETTINGS = {
    "async.rolout.shards=2": "did you mean async.rollout?",
    "async.trian.enabled=true": "did you mean async.train?",
    "async.train.max_staleness=two": "must be a whole number of at least 0",
    "async.train.max_staleness=1.6": "nearest: 2",
    "async.train.max_staleness=-1": "nearest: 0",
    "async.rollout.shards=5": "nearest number of shards per worker that does: 4",
    "actor.global_batch_size=100": "nearest: 160",
    "actor.micro_batch_size=7": "nearest micro_batch_size: 8",
    "async.mode=ful": "did you mean 'full'?",
    "async=ful": "async=ful is none of full, lean, off, rollout, streamer, train; did you mean 'full'?",
    "+async=ful": "did you mean 'full'?",
    "async.train.correction=none": "use async.train.correction=decoupled",
    "async.rollout.max_batch_size=2": "use at least 16",
    "async.mode": "the override 'async.mode' cannot be read; one looks like async.mode=full",
    "async.offload=keep": "offloading of parts that work at the same time is switched off",
    "env.train.task_name=button-pres": "env.train.task_name='button-pres' is no task of Meta-World; take one",
    "env.train.total_num_envs=33": "env.train.total_num_envs: 32",
    "env.train.total_num_envs=0": "must be a whole number of at least 1",
    "actor.model.num_action_chunks=3": "max_steps_per_rollout_epoch=20 is no multiple",
    "actor.model.model_type=mlp_polcy": "did you mean 'mlp_policy'?",
    "actor.model.model_path=/path/to/model": "/path/to/model does not exist",
    "actor.model.is_lora=true": "is_lora=true with actor.model.model_type=mlp_policy: ",
    "actor.model.is_lora=true ++actor.model.lora_path=/adapters": "lora_path=/adapters does not exist",
    "actor.model=nothing": "actor.model must be a block of keys: ",
    "env.train.env_class=metaworld_tsk": "env.eval.env_class='metaworld_tsk' is not an entry point of",
    "env.train.env_type=metaword": "did you mean 'metaworld'?",
    "env.train.env_type=null": "env.train.env_type is missing; set it to the name of a simulator of RLinf",
    "~env.eval.env_type": "env.eval.env_type is missing; set it to one of maniskill, libero,",
    "actor.model.obs_dim=40": "does not fit env_class=metaworld_task; use actor.model.obs_dim=39",
    "async.mode=FULL": "did you mean 'full'?",
    "algorithm.adv_type=gea": "did you mean 'gae'?; rlinf-async makes PPO and GRPO asynchronous",
    "algorithm.loss_type=actor_critc": "loss_type actor_critic",
    "runner.max_epoch=3": "did you mean runner.max_epochs?",
    "runner.max_epochs=two": "runner.max_epochs='two' must be a whole number",
    "runner.max_epochs=two async.mode=off": "runner.max_epochs='two' must be a whole number",
    "runner.max_epochs=0": "must be a whole number of at least 1",
    "runner.resume_dir=/dev/null/nowhere": "must end in global_step_N",
    "runner.resume_dir=/dev/null/nowhere/global_step_4": "has no directory actor",
    "runner.ckpt_path=/dev/null/nowhere.pt": "/dev/null/nowhere.pt does not exist",
    "runner.logger.log_path=/dev/null/runs": "cannot be written",
    "runner.logger.logger_backends=[tensorbord]": "did you mean 'tensorboard'?",
    "runner.logger.logger_backends=[wandb]": "pip install wandb",
    "actor.seed=x": "actor.seed='x' must be a whole number",
    "runner.save_interval=often": "runner.save_interval='often' must be a whole number",
    "actor.optim.lr=fast": "actor.optim.lr='fast' must be a finite number of at least 0",
    "algorithm.update_epoch=0": "algorithm.update_epoch=0 must be a whole number of at least 1",
    "rollout.pipeline_stage_num=0": "rollout.pipeline_stage_num=0 must be a whole number of at least 1",
    "algorithm.adv_type=grpo": "algorithm.group_size=1: the members of a group are compared",
    "actor.model.add_value_head=false": "actor.model.add_value_head=true",
    "actor.model.precision=fp17": "must be one of bf16, bf16-mixed, fp16, 16,",
    "actor.model.model_type=openvla": "needs the package prismatic, which is not installed",
    "runner.task_type=reasoning": "runner.task_type='reasoning' is none of embodied, embodied_eval",
    "weight_syncer.type=buckt": "did you mean 'bucket'?",
    "weight_syncer.type=patch": "weight_syncer.type=patch with no weight_syncer.patch: ",
    "actor.optim.lr=nan": "actor.optim.lr=nan must be a finite number of at least 0",
    "actor.optim.lr=-1e-4": "actor.optim.lr=-0.0001 must be a finite number of at least 0; nearest: 0",
    "algorithm.gamma=1.5": "algorithm.gamma=1.5 must be a number from 0 to 1; nearest: 1",
    "algorithm.clip_ratio_high=-0.2": "must be a finite number of at least 0; nearest: 0",
    "algorithm.logprob_type=chunk": "did you mean 'chunk_level'?",
    "algorithm.reward_type=chunklevel": "did you mean 'chunk_level'?",
    "algorithm.bootstrap_type=alwayss": "did you mean 'always'?",
    "runner.max_steps=ten": "runner.max_steps='ten' must be a whole number of at least -1",
    "runner.max_epochs='3'": "runner.max_epochs='3' must be a whole number of at least 1; nearest: 3",
    "runner.max_epochs=true": "runner.max_epochs=True must be a whole number of at least 1",
    "actor.seed=-1": "actor.seed=-1 must be a whole number from 0 to 4294967295; nearest: 0",
    "env.train.auto_reset=maybe": "env.train.auto_reset='maybe' must be true or false",
    "runner.logger=nothing": "runner.logger must be a block of keys: ",
    "~weight_syncer": "use '+weight_syncer={type: bucket, bucket: {bucket_size: 536870912}}'",
    "trainer.total_training_steps=3": "did you mean runner.max_epochs?",
    "nonsense=1": "+nonsense=1 would add it",
    **{f"async.train={value}": "nearest: async.train=true" for value in ("1", "yes")},
    "async.train=0": "async.train=0 must be a block, true or false; nearest: async.train=false",
    **{f"async.survive={value}": "nearest: async.survive.env_restarts=1" for value in ("true", "1", "yes")},
    "--config-dir /dev/null/nowhere": "--config-dir=/dev/null/nowhere is no directory",
    "--config-path /dev/null/nowhere": "--config-dir=/dev/null/nowhere is no directory",
}
"""Words beside the name of the demo's config, and what is answered."""

ADVICE = re.compile(
    r"(?:\buse|\bset|nearest:|\bor) (?P<typed>[a-z_]+(?:\.[a-z_0-9]+)+=[\w.\[\]-]+?)(?=[,;.]?(?:\s|$))"
)
"""A setting that an answer advises."""

COMMANDS = {
    "train": "a config is missing",
    "train metaworld_ppo": "there is no config 'metaworld_ppo' (did you mean",
    "explain metaworld_ppo": "there is no config 'metaworld_ppo' (did you mean",
    "train metaworld_ppo_mlp.yaml": "a config of this package is named without .yaml",
    "explain metaworld_ppo_mlp.yaml": "a config of this package is named without .yaml",
    "explain metaworld_ppo_mlp --diff nope": "there is no config 'nope'",
    "trian metaworld_ppo_mlp": "Did you mean 'train'",
    "train local/point_reach settings.lrr=1": "did you mean settings.lr?",
    "train local/point_reach model.model_type=gausian_mlp": "did you mean 'gaussian_mlp'?",
    "train local/point_reach env.env_class=point_rech": "did you mean 'point_reach'?",
    "train local/point_reach run_dir=/dev/null/x": "/dev/null/x (run_dir) cannot be written",
    "train local/point_reach settings.batches=2.5": "settings.batches=2.5 must be a whole number of at least",
    "explain local/point_reach settings.batches=16.0": "nearest: 16",
    "explain local/point_reach settings.batches=ten": "settings.batches='ten' must be a whole number of",
    "explain local/point_reach settings.batches=null": "settings.batches=null must be a whole number of",
    "explain local/point_reach settings.seed=-1": "settings.seed=-1 must be a whole number from 0 to",
    "explain local/point_reach +settings.clip=nan": "settings.clip=nan must be a finite number above 0",
    "explain local/point_reach settings.global_batch_size=0": "of at least 1; nearest: 1",
    "explain local/point_reach settings=3": "settings must be a block of keys: ",
    "explain local/point_reach env.env_class=point_rech": "did you mean 'point_reach'?",
    "explain local/point_reach run_dir=/dev/null/x": "/dev/null/x (run_dir) cannot be written",
    "train local/point_reach runner.max_epochs=3": "did you mean settings.batches?",
    "train local/point_reach +runner.max_epochs=3": "does not read runner.max_epochs=3; use settings.batches",
    "train local/point_reach settings.total_envs=33": "are not a multiple of global_batch_size=320",
    "sweep metaworld_ppo_mlp --modes ladr": "did you mean 'ladder'?",
    "sweep metaworld_ppo_mlp --seeds 0": "--seeds=0 must be at least 1",
    "sweep metaworld_ppo_mlp async.mode=full": "is for the sweep to set",
    "sweep metaworld_ppo_mlp --output other": "holds something that is no sweep",
    "sweep metaworld_ppo_mlp --vary nonsense=1,2": "+nonsense=1 would add it",
    "explain metaworld_ppo_mlp --gpu-memory -1": "Invalid value for '--gpu-memory'",
    "bench --scenario nope": "scenario 'nope' is not one of",
    "plan": "Missing argument",
    **{f"{command} nowhere": "nowhere" for command in ("report", "trace", "status", "plan")},
    **{f"{command} other": "no run directory" for command in ("report", "trace", "status")},
    **{f"{command} file": "file is" for command in ("report", "trace", "status")},
}
"""Whole command lines; `other` is a folder with somebody's file in it, and `file` is a file."""


@pytest.fixture(autouse=True)
def outside(tmp_path: Path, monkeypatch) -> Path:
    """A folder that is no checkout, with RLinf's variables as they were afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("RAY_ADDRESS", "local")
    return tmp_path


@pytest.fixture(autouse=True)
def began(monkeypatch) -> list[str]:
    """What was started that only a run which can begin may start; Ray, RLinf's or another loop, a sweep."""
    begun: list[str] = []
    for owner, name in (
        (ray, "init"),
        (RLinfHost, "train"),
        (LocalHost, "train"),
        (SweepDirectory, "claimed"),
    ):
        what = f"{getattr(owner, '__name__', owner)}.{name}"
        monkeypatch.setattr(owner, name, lambda *_, what=what, **__: begun.append(what))
    return begun


def answer(*words: str) -> str:
    """What the command says, which must be short, an error, and no traceback."""
    result = CliRunner().invoke(cli.app, list(words))
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) <= LONGEST, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize("words", SETTINGS)
def test_a_wrong_setting_is_answered_before_anything_starts(words, began):
    if "wandb" in words and find_spec("wandb"):
        pytest.skip("wandb is installed, so that there is nothing wrong")
    text = answer("train", DEMO, *words.split())
    assert SETTINGS[words] in text
    assert began == []
    advised = ADVICE.findall(text)
    assert advised or not ADVICE.search(SETTINGS[words])
    for typed in advised:  # what is advised is accepted, though something else may still be wrong
        again = CliRunner().invoke(cli.app, ["explain", DEMO, *words.split(), typed])
        said = " ".join(again.output.split())
        assert not again.exit_code or (said != text and f"{typed} " not in said.partition(";")[0]), said


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_answered_before_anything_starts(line, began):
    assert COMMANDS[line] in answer(*line.split())
    assert began == []


def test_a_run_without_a_mistake_does_begin(began):
    assert CliRunner().invoke(cli.app, ["train", DEMO, "~warm_start"]).exit_code == 0
    assert began == ["RLinfHost.train"]


@pytest.mark.parametrize("words", ["async=full", "+async=full", "+async.mode=full", "async.mode=full"])
@pytest.mark.parametrize("block", ["", "defaults: [async: train]\n"])
def test_every_way_to_write_the_preset_works_with_a_block_and_without(words, block, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(f"{block}runner: {{seq_length: 1}}\n")
    cfg: DictConfig = compose.compose_config("mine", [words], tmp_path)
    assert cfg["async"].mode == "full"


@pytest.mark.parametrize("command", ["explain", "train"])
def test_a_warm_start_that_cannot_be_made_is_refused_by_every_command(command, began):
    assert "warm_start.episodes must be a multiple of 16, got 5" in answer(
        command, DEMO, "warm_start.episodes=5"
    )
    assert began == []


@pytest.mark.parametrize("command", ["explain", "train"])
def test_a_value_that_a_warm_start_takes_from_another_key_is_refused_by_that_key(command):
    said = answer(command, DEMO, "env.train.max_episode_steps=-5")
    assert "env.train.max_steps_per_rollout_epoch=-5 must be a whole number" in said
    assert "warm_start" not in said


def test_a_simulator_that_is_not_installed_is_named(monkeypatch, began):
    for module in ("libero", "mani_skill", "metaworld"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delenv("LIBERO_TYPE", raising=False)
    for config, package in {"libero_object_ppo_vla": "libero", "maniskill_ppo_mlp": "mani_skill"}.items():
        assert f"needs the package {package}, which is not installed" in answer("train", config)
    assert began == []
    # An environment of one's own names its own package, whatever its actions are prepared like.
    said = answer("train", DEMO)
    assert "env_class=metaworld_task needs Meta-World; install it: pip install" in said
    assert said.count("Meta-World") == 1
    assert "needs the package metaworld" in answer("train", DEMO, "env.train.env_class=null")


def test_what_would_be_refused_here_is_said_by_explain_unless_another_cluster_is_meant():
    words = ["explain", DEMO, "actor.model.model_path=/path/to/model"]
    here, there = (
        " ".join(CliRunner().invoke(cli.app, [*words, *more]).output.split())
        for more in ([], ["--gpus", "8"])
    )
    assert "a run would not begin on this machine" in here
    assert "a run would not begin" not in there


def test_assets_that_are_not_there_are_named(monkeypatch, began):
    monkeypatch.setenv("RLINF_ASYNC_LIBERO_ASSETS", "/dev/null/nowhere")
    monkeypatch.setattr("rlinf_async.extras.find_spec", lambda name: object())
    assert "/dev/null/nowhere is no LIBERO asset folder" in answer("train", "libero_object_ppo_vla")
    assert began == []


def test_a_cluster_that_does_not_answer_is_named(monkeypatch, began):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "nothing answers at RAY_ADDRESS=127.0.0.1:1" in answer("train", DEMO)
    assert began == []


def test_a_second_run_in_one_directory_is_refused(tmp_path: Path, began):
    (tmp_path / "mine").mkdir()
    with FileLock(tmp_path / "mine" / ".lock"):
        text = answer("train", DEMO, "runner.logger.log_path=mine")
        assert "belongs to a run that still goes on" in text
        assert "choose another place by runner.logger.log_path=mine-2" in text
    assert began == []


def test_a_resumed_run_that_has_nothing_to_do_says_so(tmp_path: Path, began):
    """Asked for by name that is an error; of the command that goes on from whatever there is, the end."""
    folder = tmp_path / "mine" / DEMO / "checkpoints" / "global_step_4"
    (folder / "actor").mkdir(parents=True)
    place = "runner.logger.log_path=mine"
    text = answer("train", DEMO, place, f"runner.resume_dir={folder}", "runner.max_epochs=4")
    assert (
        "saved after step 4, and runner.max_epochs=4; to go on, set runner.max_epochs to more than 4" in text
    )
    assert "more than 4" in answer("train", DEMO, place, f"runner.resume_dir={folder}", "runner.max_steps=2")
    assert began == []


def test_everything_that_is_wrong_is_said_at_once():
    text = answer("train", DEMO, "actor.model.model_type=mlp_polcy", "async.rollout.shards=5")
    assert "cannot run for 2 reasons" in text
    assert "mlp_policy" in text
    assert "nearest number of shards" in text


@pytest.mark.parametrize(("options", "began"), [((), 1), (("--dashboard",), 0)])
def test_a_refused_config_ends_the_template_of_workers_that_had_begun(monkeypatch, options, began):
    begun, ended = [], []

    class Begun:
        def __init__(self, shared):
            begun.append(self)

        def end(self):
            ended.append(self)

    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(template, "Template", Begun)
    monkeypatch.setattr(template, "can_be_forked", lambda: True)
    result = CliRunner().invoke(
        cli.app, ["train", DEMO, *options, "async.mode=full", "algorithm.loss_type=no"]
    )
    assert result.exit_code == 2
    assert (len(begun), ended) == (began, begun)
