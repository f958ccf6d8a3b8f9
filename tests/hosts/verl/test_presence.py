"""What a config for veRL names and is not here is answered before Ray starts."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import ray
from typer.testing import CliRunner

from rlinf_async import cli
from rlinf_async.hosts.verl.host import VerlHost
from rlinf_async.hosts.verl.settings import section
from rlinf_async.hosts.verl.view import VerlView

MISTAKES = {
    "async.rolout.shards=2": "did you mean async.rollout?",
    "async.train.max_staleness=two": "must be a whole number of at least 0",
    "async.mode=ful": "did you mean 'full'?",
    "async=ful": "did you mean 'full'?",
    "env.train.total_num_envs=33": "nearest: data.train_batch_size=33",
    "++env.train.env_type=7": "must be the name of a simulator",
    "env.train.env_class=metaworld_tsk": "did you mean 'metaworld_task'?",
    "env.train.task_name=button-pres": "did you mean 'button-press-v3'?",
    "vla.model.model_type=gausian_mlp": "did you mean 'gaussian_mlp'?",
    "vla.run_dir=/dev/null/x": "cannot be written",
    "trainer.resume_mode=resume_path trainer.resume_from_path=/dev/null/nowhere": "is no whole checkpoint",
    "trainer.resume_mode=resum": "must be one of auto, resume_path, disable",
    "trainer.total_training_steps=two": "must be a whole number of at least 1",
    "trainer.total_trainning_steps=3": "did you mean trainer.total_training_steps?",
    "trainer.logger=[tensorbord]": "did you mean 'tensorboard'?",
    "trainer.logger=[swanlab]": "pip install swanlab",
    "algorithm.adv_estimator=gea": "did you mean 'gae'?",
    "actor_rollout_ref.actor.ppo_mini_batch_size=100": "nearest: 32",
    "actor_rollout_ref.actor.policy_loss.loss_mode=vanila": "did you mean 'vanilla'?",
    "actor_rollout_ref.actor.loss_agg_mode=token_mean": "did you mean 'token-mean'?",
    "actor_rollout_ref.actor.optim.lr=ten": "must be a finite number of at least 0",
    "actor_rollout_ref.actor.clip_ratio=abc": "must be a number from 0 to 1",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosin": "did you mean 'cosine'?",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=bff16": "did you mean 'bf16'?",
    "actor_rollout_ref.actor.checkpoint.save_contents=[modl]": "must be one of model, optimizer, extra",
    "actor_rollout_ref.actor.checkpoint.save_contents=[model] "
    "actor_rollout_ref.actor.checkpoint.load_contents=[model,optimizer]": "checkpoint.load_contents=[model]",
    "vla.ckpt_path=/dev/null/nowhere.pt": "does not exist",
    "ray_kwargs.ray_init.num_cpus=2": "set ray_kwargs.ray_init.num_cpus=3",
    "+trainer.total_training_step=3": "did you mean trainer.total_training_steps?",
    "algorithm.adv_estimator=grpo": "the members of a group are compared",
    "trainer.v1.trainer_mode=vla_asyn": "did you mean 'vla_async'?",
    "trainer.v1.trainer_mode=sync": "'sync' reads no async block",
    "env.stages=3": "nearest number of shards per worker that does: 2",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_answered_in_five_lines_before_anything_starts(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    begun: list[str] = []
    monkeypatch.setattr(ray, "init", lambda *_, **__: begun.append("ray"))
    monkeypatch.setattr(VerlHost, "train", lambda *_, **__: begun.append("train"))
    result = CliRunner().invoke(cli.app, ["train", "verl_metaworld_ppo_mlp", *words.split()])
    assert result.exit_code == 2, result.output
    assert MISTAKES[words] in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) <= 5
    assert begun == []


@pytest.mark.skipif(bool(find_spec("verl_vla")), reason="verl-vla is here")
def test_an_environment_whose_package_is_missing_is_named_with_how_to_install_it():
    result = CliRunner().invoke(cli.app, ["explain", "verl_vla_libero_ppo"])
    assert result.exit_code == 2
    assert "verl-vla; install it: pip install --no-deps git+" in " ".join(result.output.split())


def test_a_word_of_verl_vlas_is_answered_with_ours():
    words = ["verl_metaworld_ppo_mlp", "+env.rollout.pipeline_stage_num=2", "++env.train.num_envs=2"]
    said = " ".join(CliRunner().invoke(cli.app, ["explain", *words]).output.split())
    assert "env.rollout.pipeline_stage_num=2; did you mean env.stages?" in said


def test_the_simulator_that_a_class_is_asked_for_decides_how_it_is_divided():
    env = {"env_class": "several", "simulator_type": "libero"}
    assert section(VerlView(train=env), "train")["env_type"] == "libero"
    assert section(VerlView(train={"env_class": "several"}), "train")["env_type"] == "several"
