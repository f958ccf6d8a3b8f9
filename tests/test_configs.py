import re
from pathlib import Path

import pytest

pytest.importorskip("hydra", reason="Hydra is not installed")

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from rlinf_async.lab.demo.simulators.metaworld_task import TaskSettings
from rlinf_async.lab.demo.warm_start_settings import WarmStart

FILES = (Path(__file__).parents[1] / "configs").glob("*.yaml")
NAMES = sorted(path.stem for path in FILES if not path.stem.startswith("verl_"))


def composed(name):
    with initialize_config_module("rlinf_async.configs", version_base="1.3"):
        return compose(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_is_complete_by_itself_and_bears_its_own_name(name):
    config = composed(name)
    settings = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert settings["runner"]["logger"]["experiment_name"] == name
    assert settings["async"] == {"mode": "full"}


@pytest.mark.parametrize("name", NAMES)
def test_a_names_parts_are_true_of_its_settings(name):
    config = composed(name)
    simulator, algorithm, policy = (name.split("_")[index] for index in (0, -2, -1))
    assert config.env.train.env_type == simulator
    assert config.algorithm.adv_type == {"ppo": "gae", "grpo": "grpo"}[algorithm]
    assert config.algorithm.loss_type == {"ppo": "actor_critic", "grpo": "actor"}[algorithm]
    assert (
        config.actor.model.model_type == {"mlp": "mlp_policy", "vla": "smol_vla", "pi0": "tiny_pi0"}[policy]
    )


@pytest.mark.parametrize("name", NAMES)
def test_batches_divide_what_a_step_collects(name):
    config = composed(name)
    model, train = config.actor.model, config.env.train
    assert train.max_steps_per_rollout_epoch % model.num_action_chunks == 0
    assert train.total_num_envs % train.group_size == 0
    collected = train.total_num_envs * train.max_steps_per_rollout_epoch // model.num_action_chunks
    assert collected % config.actor.global_batch_size == 0
    assert config.actor.global_batch_size % config.actor.micro_batch_size == 0


@pytest.mark.parametrize("name", [name for name in NAMES if re.fullmatch("metaworld_.*_mlp", name)])
def test_the_warm_start_is_of_the_task_that_is_trained(name):
    config = composed(name)
    start = WarmStart(**OmegaConf.to_container(config.warm_start, resolve=True))
    assert start == WarmStart(task_name=config.env.train.task_name)
    TaskSettings(start.task_name, config.env.train.max_episode_steps, config.env.train.action_repeat)


def test_pi0_is_cloned_as_it_is_trained():
    config = OmegaConf.to_container(composed("metaworld_ppo_pi0"), resolve=True)
    start, train = WarmStart(**config["warm_start"]), config["env"]["train"]
    assert start.model == config["actor"]["model"]
    for name in ("task_name", "max_episode_steps", "action_repeat"):
        assert getattr(start, name) == train[name]


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_plays_the_trained_task_from_other_seeds(name):
    config = composed(name)
    assert config.env.eval.is_eval
    assert not config.env.train.is_eval
    assert config.env.eval.max_episode_steps == config.env.train.max_episode_steps
