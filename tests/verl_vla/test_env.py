"""The adapter around verl-vla's own base class, with a script in the place of a simulator."""

import pytest

from tests.verl_vla.conftest import without_verl_vla

if why := without_verl_vla():
    pytest.skip(why, allow_module_level=True)

import numpy as np
import torch
from verl_vla.envs.base import BaseEnv

from rlinf_async.hosts.contract import Contract
from rlinf_async.hosts.verl.verl_vla import env as adapter
from rlinf_async.hosts.verl.verl_vla.sections import wrong

SECTION = {"simulator_type": "libero", "max_episode_steps": 5, "seed": 3, "auto_reset": False}
LENGTH = 5


class Counting(BaseEnv):
    """A state counts the steps of an episode; environment 0 succeeds at step 2, and at no other."""

    env_type = "libero"

    def __init__(self, cfg, rank, world_size, only_eval=False):
        self.evaluates, self.resets = only_eval, []
        super().__init__(cfg, rank, world_size)

    def env_init(self):
        self.steps = np.zeros(self.num_envs, dtype=int)

    def env_reset(self, *, env_ids, reset_eval=False, extra=None):
        self.steps[env_ids] = 0
        self.resets.append((list(env_ids), reset_eval))
        return self._seen(env_ids)

    def env_step(self, actions, *, env_ids):
        self.steps[env_ids] += 1
        succeeded = (self.steps[env_ids] == 2) & (np.asarray(env_ids) == 0)
        return {
            **self._seen(env_ids),
            "next.reward": torch.from_numpy(np.ones(len(env_ids))),
            "next.terminated": torch.from_numpy(succeeded),
            "next.truncated": torch.from_numpy(self.steps[env_ids] >= LENGTH),
            "next.success": torch.from_numpy(succeeded),
        }

    def _seen(self, env_ids):
        pictures = [np.full((4, 4, 3), self.steps[i], dtype=np.uint8)[::-1] for i in env_ids]
        return {
            "observation": [
                {"observation.images.image": picture, "observation.state": np.full(2, float(self.steps[i]))}
                for i, picture in zip(env_ids, pictures, strict=True)
            ],
            "task": [f"task {i}" for i in env_ids],
            "task_id": np.asarray(env_ids),
        }


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setitem(adapter.SIMULATOR_CLASSES, "libero", f"{__name__}:Counting")

    def build(**changes):
        return adapter.VerlVlaEnv({**SECTION, **changes}, 2, 0, 1, None)

    return build


def actions(steps):
    return torch.zeros(2, steps, 7)


def test_what_it_gives_crosses_the_border_of_every_host(counting):
    env, contract = counting(), Contract(0, 2)
    observation, _ = contract.of(env).reset(env.reset())
    step = contract.of(env).step(env.chunk_step(actions(3)), steps=3)
    assert observation["main_images"].dtype == torch.uint8
    assert observation["states"].dtype == torch.float32
    assert observation["task_descriptions"] == ["task 0", "task 1"]
    assert step.observation["states"].tolist() == [[3, 3], [3, 3]]


def test_nothing_counts_after_the_end_of_an_episode_and_its_flag_stays_up(counting):
    env = counting()
    env.reset()
    _, rewards, terminations, truncations, [info] = env.chunk_step(actions(3))
    assert rewards.tolist() == [[1, 1, 0], [1, 1, 1]]
    assert terminations.tolist() == [[False, True, True], [False] * 3]
    assert not truncations.any()
    assert info["episode"]["success_once"].tolist() == [True, False]
    _, rewards, terminations, truncations, [info] = env.chunk_step(actions(3))
    assert rewards.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert terminations.tolist() == [[True] * 3, [False] * 3]
    assert truncations.tolist() == [[False] * 3, [False, True, True]]
    assert info["episode"]["return"].tolist() == [2, 5]
    assert info["episode"]["episode_len"].tolist() == [2, 5]


def test_a_new_rollout_begins_new_episodes(counting):
    env = counting()
    for _ in range(2):
        observation, _ = env.reset()
        assert observation["states"].tolist() == [[0, 0], [0, 0]]
        *_, terminations, truncations, [info] = env.chunk_step(actions(1))
        assert not (terminations | truncations).any()
        assert info["episode"]["episode_len"].tolist() == [1, 1]


def test_only_ended_environments_reset_themselves_and_their_last_observation_is_kept(counting):
    env = counting(auto_reset=True)
    env.reset()
    [observation], _, terminations, _, [info] = env.chunk_step(actions(3))
    assert terminations[:, -1].tolist() == [True, False]
    assert observation["states"].tolist() == [[0, 0], [3, 3]]
    assert observation["main_images"][:, 0, 0, 0].tolist() == [0, 3]
    assert info["final_observation"]["states"].tolist() == [[3, 3], [3, 3]]
    assert info["final_info"]["episode"]["success_once"].tolist() == [True, False]
    [observation], _, terminations, truncations, [info] = env.chunk_step(actions(2))
    assert observation["states"].tolist() == [[0, 0], [0, 0]]  # one succeeds again, the other's time is over
    assert truncations[:, -1].tolist() == [False, True]
    assert info["final_info"]["episode"]["episode_len"].tolist() == [2, 5]


def test_every_evaluation_begins_with_the_first_episode(counting):
    env = counting(is_eval=True, rollout_epoch=2)
    for _ in range(4):
        env.reset()
    assert env._env.evaluates
    assert [anew for _, anew in env._env.resets] == [True, False, True, False]


def test_a_section_is_read_in_verl_vlas_words(counting):
    config = counting(libero={"task_ids": [4], "camera_heights": 64})._env.cfg
    assert (config.num_envs, config.simulator.simulator_type) == (2, "libero")
    assert config.simulator.libero.task_ids == [4]
    assert (config.simulator.libero.camera_heights, config.simulator.libero.camera_widths) == (64, 256)
    assert (config.simulator.libero.max_episode_steps, config.simulator.libero.seed) == (5, 3)
    assert not any((config.auto_reset, config.recorder.enable, config.teleop.enable))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"simulator_type": "arena"}, "env.train.simulator_type=arena has not been run under this host"),
        ({"simulator_type": "gym"}, "env.train.simulator_type=gym is no simulator of verl-vla; use libero"),
        (
            {"libero": {"task_id": [0]}},
            "verl-vla does not read env.train.libero.task_id; remove it; did you mean 'task_ids'?",
        ),
        ({"libero": {"seed": 1}}, "env.train.libero.seed: env.train.seed has this setting"),
        ({"libero": [1]}, "must be a block"),
    ],
)
def test_what_it_cannot_be_built_of_is_refused_by_name(changes, said):
    [reason] = wrong({**SECTION, **changes}, key="env.train", model=None)
    assert said in reason.text
