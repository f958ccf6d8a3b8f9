import threading

import numpy as np
import pytest
import torch

pytest.importorskip("omegaconf", reason="sections of a config are OmegaConf's")

from omegaconf import OmegaConf

from rlinf_async.lab.demo.simulators.camera import installed_backend
from rlinf_async.lab.demo.simulators.metaworld_env import MetaWorldEnvSettings, MetaWorldTaskEnv

SECTION = {
    "task_name": "button-press-topdown-v3",
    "max_episode_steps": 4,
    "seed": 1,
    "group_size": 1,
    "auto_reset": False,
    "ignore_terminations": False,
    "env_type": "metaworld",
    "video_cfg": {"save_video": False},
}


@pytest.fixture
def environment():
    opened = []

    def build(num_envs=2, seed_offset=0, **changes):
        section = OmegaConf.create({**SECTION, **changes})
        opened.append(MetaWorldTaskEnv(section, num_envs, seed_offset, 1, None))
        return opened[-1]

    yield build
    for env in opened:
        env.close()


def test_environments_take_on_the_rollout_of_others_with_their_goals_and_groups(environment):
    other = environment(num_envs=4, seed_offset=1, group_size=2)
    begun = [other.reset()[0]["states"] for _ in range(3)]
    taking = environment(num_envs=4, seed_offset=0, group_size=2)
    own = taking.reset()[0]["states"]
    for rollout in (2, 0, 1):
        taking.take_on(1, rollout)
        assert torch.equal(taking.reset()[0]["states"], begun[rollout])
    taking.take_on(0, 0)
    assert torch.equal(taking.reset()[0]["states"], own)


def chunk(envs, decisions):
    return torch.zeros(envs, decisions, 4)


class Solved:
    """Stands in for the simulators' step and reports success at one decision of one environment."""

    def __init__(self, env, index, decision):
        self._simulators, self._index, self._decision = env._simulators, index, decision

    def __getattr__(self, name):
        return getattr(self._simulators, name)

    def step(self, actions):
        step = self._simulators.step(actions)
        step.successes[self._index, self._decision :] = True
        step.rewards[self._index, self._decision] = 1.0
        return step


def test_a_step_has_the_shapes_that_env_worker_reads(environment):
    env = environment(num_envs=2)
    observation, infos = env.reset()
    assert infos == {}
    assert observation["states"].shape == (2, 39)
    assert observation["states"].dtype == torch.float32
    assert observation["task_descriptions"] == ["button press topdown"] * 2
    observations, rewards, terminations, truncations, infos = env.chunk_step(chunk(2, 2))
    assert rewards.shape == terminations.shape == truncations.shape == (2, 2)
    assert terminations.dtype == truncations.dtype == torch.bool
    assert set(infos[-1]["episode"]) == {"success_once", "return", "episode_len", "reward"}
    assert all(value.shape == (2,) for value in infos[-1]["episode"].values())
    structs = pytest.importorskip("rlinf.data.embodied_io_struct", reason="RLinf is not installed")
    message = structs.EnvOutput(
        obs=observations[-1],
        rewards=rewards,
        env_infos=infos[-1],
        dones=terminations | truncations,
        terminations=terminations,
        truncations=truncations,
    ).to_dict()
    assert message["obs"]["main_images"] is None
    assert torch.equal(message["obs"]["states"], observations[-1]["states"])


def test_members_of_a_group_share_their_goal(environment):
    env = environment(num_envs=4, group_size=2)
    states = env.reset()[0]["states"]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_shards_and_evaluation_meet_other_goals(environment):
    starts = [
        environment(num_envs=1, **options).reset()[0]["states"]
        for options in ({}, {"seed_offset": 1}, {"is_eval": True})
    ]
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


def test_every_evaluation_starts_from_the_same_goals_and_training_does_not(environment):
    for is_eval in (True, False):
        env = environment(num_envs=2, is_eval=is_eval)
        first = env.reset()[0]["states"]
        env.update_reset_state_ids()
        assert torch.equal(first, env.reset()[0]["states"]) == is_eval


def test_without_auto_reset_a_solved_environment_keeps_its_flags(environment):
    env = environment(num_envs=2)
    env.reset()
    env._simulators = Solved(env, index=1, decision=1)
    _, rewards, terminations, truncations, infos = env.chunk_step(chunk(2, 3))
    assert terminations.tolist() == [[False, False, False], [False, True, True]]
    assert not truncations.any()
    assert rewards[1].tolist() == [0, 1, 0]
    assert infos[-1]["episode"]["success_once"].tolist() == [False, True]
    assert infos[-1]["episode"]["return"].tolist() == [0, 1]


def test_auto_reset_hands_over_the_final_observation_and_restarts_only_what_is_done(environment):
    env = environment(num_envs=2, auto_reset=True)
    env.reset()
    env._simulators = Solved(env, index=1, decision=0)
    observations, _, terminations, _, infos = env.chunk_step(chunk(2, 2))
    assert terminations.tolist() == [[False, False], [False, True]]
    final = infos[-1]["final_observation"]["states"]
    assert torch.equal(final[0], observations[-1]["states"][0])
    assert not torch.equal(final[1], observations[-1]["states"][1])
    assert infos[-1]["final_info"]["episode"]["success_once"].tolist() == [False, True]
    assert infos[-1]["_final_observation"].tolist() == [False, True]
    env._simulators = env._simulators._simulators
    _, _, _, _, infos = env.chunk_step(chunk(2, 1))
    assert infos[-1]["episode"]["episode_len"].tolist() == [3, 1]
    assert infos[-1]["episode"]["success_once"].tolist() == [False, False]


def test_ignored_terminations_leave_only_the_horizon_at_the_end_of_the_chunk(environment):
    env = environment(num_envs=1, ignore_terminations=True)
    env.reset()
    env._simulators = Solved(env, index=0, decision=1)
    _, _, terminations, truncations, infos = env.chunk_step(chunk(1, 4))
    assert not terminations.any()
    assert truncations.tolist() == [[False, False, False, True]]
    assert infos[-1]["episode"]["success_at_end"].tolist() == [True]


def test_instances_of_several_threads_do_not_disturb_each_other(environment):
    starts = {}

    def run(offset):
        env = environment(num_envs=1, seed_offset=offset)
        env.reset()
        starts[offset] = env.chunk_step(chunk(1, 2))[0][-1]["states"]

    threads = [threading.Thread(target=run, args=(offset,)) for offset in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for offset in range(2):
        env = environment(num_envs=1, seed_offset=offset)
        env.reset()
        assert torch.equal(starts[offset], env.chunk_step(chunk(1, 2))[0][-1]["states"])


def test_a_section_without_a_task_is_refused():
    with pytest.raises(ValueError, match="task_name"):
        MetaWorldEnvSettings.parse({"seed": 0, "group_size": 1, "max_episode_steps": 1})


@pytest.mark.render
@pytest.mark.skipif(installed_backend() is None, reason="no EGL or OSMesa library")
def test_pictures_are_there_when_a_size_is_given(environment):
    env = environment(num_envs=2, image_size=32)
    images = env.reset()[0]["main_images"]
    assert images.shape == (2, 32, 32, 3)
    assert images.dtype == torch.uint8
    assert np.ptp(images.numpy()) > 50


def test_the_shards_of_a_run_have_the_episodes_of_the_whole(environment):
    whole = environment(num_envs=4).reset()[0]["states"]
    shards = [environment(num_envs=2, seed_offset=offset).reset()[0]["states"] for offset in (0, 1)]
    assert torch.equal(whole, torch.cat(shards))
