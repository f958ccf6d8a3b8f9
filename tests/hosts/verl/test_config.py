"""What each key of veRL's config means to a run, and what is written back."""

import pytest
from omegaconf import OmegaConf, open_dict

from rlinf_async.compose import packaged_names
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.verl.config import read, write_back
from rlinf_async.hosts.verl.settings import section
from rlinf_async.hosts.verl.view import VerlView
from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings
from rlinf_async.lab.demo.warm_start_settings import WarmStart
from tests.hosts.verl.configs import composed

NAMES = [name for name in packaged_names() if name.startswith("verl_")]
ACTOR = "actor_rollout_ref.actor"


def test_a_batch_is_prompts_times_members_and_an_optimizer_step_is_counted_in_samples():
    settings = read(composed(name="verl_metaworld_grpo_mlp"))
    assert settings.plan.group_size == 8
    assert settings.plan.trajectories_per_batch == 32
    assert settings.samples_per_batch == 32 * 20
    assert settings.global_batch_size == 8 * 20
    assert settings.optimizer_steps == 4
    assert settings.update_epoch == 4


def test_more_trajectories_than_environments_are_rollouts_of_each():
    settings = read(composed("data.train_batch_size=64"))
    assert settings.plan.rollout_epochs == 2
    assert settings.plan.trajectories_per_batch == 64


def test_numbers_of_the_update_are_verls():
    settings = read(
        composed(
            "algorithm.gamma=0.9", "algorithm.lam=0.8", "critic.cliprange_value=0.3", "vla.ratio_level=token"
        )
    )
    assert (settings.gamma, settings.lam, settings.value_clip) == (0.9, 0.8, 0.3)
    assert settings.ratio_level == "token"
    assert settings.seed == 1234
    assert settings.batches == 36


def test_ranks_are_devices_on_nodes_or_what_vla_says():
    small = f"{ACTOR}.ppo_micro_batch_size_per_gpu=40"
    plan = read(composed("trainer.n_gpus_per_node=2", "vla.inference.ranks=2", "env.workers=2", small)).plan
    assert (plan.learner_ranks, plan.inference_ranks, plan.env_workers) == (2, 2, 2)
    aside = composed(
        "~vla.inference", "actor_rollout_ref.rollout.nnodes=2", "trainer.n_gpus_per_node=4", small
    )
    assert read(aside).plan.inference_ranks == 8


def test_chunks_make_fewer_decisions_of_as_many_steps():
    settings = read(composed(name="verl_metaworld_ppo_vla"))
    assert (settings.horizon, settings.steps_per_decision) == (4, 5)
    assert settings.samples_per_batch * settings.steps_per_decision == 8 * 20


@pytest.mark.parametrize(("mode", "shards", "staleness"), [("off", 1, 0), ("train", 1, 1), ("full", 2, 1)])
def test_levels_decide_on_shards_and_staleness(mode, shards, staleness):
    settings = read(composed(f"async.mode={mode}"))
    assert settings.plan.shards_per_worker == shards
    assert settings.asynchrony.max_staleness == staleness


def test_a_config_without_an_async_block_has_all_levels_off():
    config = composed("~async")
    assert not read(config).asynchrony.active
    write_back(config, read(config))
    assert config["async"].mode == "off"


def test_what_was_resolved_is_written_back_and_reads_the_same():
    config = composed("async.streamer.micro_batch_size=80")
    settings = read(config)
    write_back(config, settings)
    assert config["async"].rollout == {"shards": 2, "max_batch_size": 32, "max_wait_ms": 0.0}
    assert OmegaConf.select(config, f"{ACTOR}.ppo_micro_batch_size_per_gpu") == 80
    assert OmegaConf.select(config, f"{ACTOR}.optim.total_training_steps") == 36
    again = read(config)
    assert (again.plan, again.max_batch_size, again.micro_batch_size) == (settings.plan, 32, 80)


def test_estimators_that_look_at_the_whole_batch_wait_for_it():
    whole = read(composed("algorithm.adv_estimator=reinforce_plus_plus", f"{ACTOR}.ppo_epochs=1"))
    assert whole.asynchrony.streamer.enabled
    assert not whole.streams
    assert read(composed(f"{ACTOR}.ppo_epochs=1")).streams
    assert read(composed(name="verl_metaworld_grpo_mlp")).streams


def test_an_environment_is_told_what_other_keys_say_of_it():
    config = composed(name="verl_metaworld_grpo_mlp")
    with open_dict(config):
        for part in ("eval", "train"):
            del config.env[part].seed, config.env[part].group_size
    train, evaluation = (section(VerlView.of(plain(config)), mode) for mode in ("train", "eval"))
    assert (train["seed"], train["group_size"]) == (1234, 8)
    assert evaluation["group_size"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_packaged_config_is_complete_by_itself_and_bears_its_own_name(name):
    config = composed(name=name)
    assert config.trainer.experiment_name == name
    assert config["async"] == {"mode": "full"}
    assert read(config).asynchrony.active
    plain = OmegaConf.to_container(config, resolve=True)
    assert "???" not in (str(plain["vla"]), str(plain["env"]), str(plain["trainer"]))
    estimator = "grpo" if "grpo" in name.split("_") else "gae"
    assert config.algorithm.adv_estimator == estimator


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("mlp")])
def test_the_warm_start_is_of_the_task_that_is_trained(name):
    config = composed(name=name)
    block = OmegaConf.to_container(config.warm_start, resolve=True)
    assert block.pop("policy_key") == "vla.ckpt_path"
    start = WarmStart(**block)
    assert start == WarmStart(task_name=config.env.train.task_name)
    TaskSettings(start.task_name, config.env.train.max_episode_steps, config.env.train.action_repeat)
