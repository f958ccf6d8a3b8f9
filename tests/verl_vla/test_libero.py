"""verl-vla's LIBERO, rendered."""

import pytest

from tests.verl_vla.conftest import without_libero

if why := without_libero():
    pytest.skip(why, allow_module_level=True)

import numpy as np
import torch

pytestmark = [pytest.mark.libero, pytest.mark.render, pytest.mark.usefixtures("libero")]

SECTION = {
    "simulator_type": "libero",
    "max_episode_steps": 3,
    "seed": 7,
    "auto_reset": False,
    "libero": {
        "task_suite_name": "libero_object",
        "task_ids": [0],
        "reset_warmup_steps": 1,
        "camera_heights": 32,
        "camera_widths": 32,
    },
}


@pytest.fixture
def build():
    made = []

    def built(envs, **changes):
        from rlinf_async.hosts.verl.verl_vla.env import VerlVlaEnv

        made.append(VerlVlaEnv({**SECTION, **changes}, envs, 0, 1, None))
        return made[-1]

    yield built
    for env in made:
        env.close()


def test_it_shows_what_verl_vlas_class_shows_and_cuts_episodes_off(build):
    env = build(2)
    observation, _ = env.reset()
    theirs = env._env._latest_obs["observation"]
    for number, one in enumerate(theirs):
        np.testing.assert_array_equal(observation["main_images"][number], one["observation.images.image"])
        np.testing.assert_allclose(observation["states"][number], one["observation.state"], rtol=1e-6)
    assert observation["main_images"].shape == observation["wrist_images"].shape == (2, 32, 32, 3)
    assert observation["main_images"].std() > 1
    assert observation["task_descriptions"] == ["pick up the alphabet soup and place it in the basket"] * 2
    [after], rewards, terminations, truncations, _ = env.chunk_step(torch.ones(2, 4, 7))
    assert truncations.tolist() == [[False, False, True, True]] * 2
    assert not terminations.any()
    assert not rewards.any()
    assert np.abs(after["states"] - observation["states"]).max() > 1e-3


def test_members_of_a_group_start_alike_and_groups_do_not(build):
    env = build(4, group_size=2)
    starts = []
    for _ in range(2):
        observation, _ = env.reset()
        ids = env._env.reset_state_ids.reshape(2, 2)
        assert (ids[:, 0] == ids[:, 1]).all()
        pictures = observation["main_images"].astype(int)
        assert np.abs(pictures[0] - pictures[1]).max() <= 2  # of the same scene, drawn by another process
        np.testing.assert_allclose(observation["states"][::2], observation["states"][1::2], atol=1e-4)
        starts.append(ids[:, 0].tolist())
        env.chunk_step(torch.zeros(4, 1, 7))
    assert len({*starts[0], *starts[1]}) > 2


def test_every_evaluation_is_of_the_same_episodes(build):
    env = build(2, is_eval=True)
    ids = []
    for _ in range(2):
        env.reset()
        ids.append(env._env.eval_episode_ids.tolist())
    assert ids[0] == ids[1] == [0, 1]


def played(env, *, stands):
    """Play three rollouts; return what simulators show that are not to stand, and all that a reset shows."""
    actions, shown = torch.Generator().manual_seed(0), []
    for decisions in ([[0, 1, 2], [0, 2], [2]], [[0, 1, 2], [1], []], [[0, 1, 2]]):
        env.let_play(None)
        shown.append(env.reset()[0])
        for numbers in decisions:
            if stands:
                env.let_play(numbers)
            [observation], *columns, _ = env.chunk_step(torch.rand(3, 2, 7, generator=actions) - 0.5)
            fields = {**observation, "rewards": columns[0], "terminations": columns[1]}
            shown.append({name: [value[number] for number in numbers] for name, value in fields.items()})
    return shown


def test_simulators_that_play_do_not_see_that_others_are_left_alone(build):
    section = {"max_episode_steps": 100}
    left_alone = build(3, **section)
    for one, other in zip(
        played(build(3, **section), stands=False), played(left_alone, stands=True), strict=True
    ):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_a_simulator_that_is_left_alone_stands_still(build):
    env = build(2, max_episode_steps=100)
    env.let_play(None)
    env.reset()
    [before], *_ = env.chunk_step(torch.ones(2, 1, 7))
    env.let_play([1])
    [after], *_ = env.chunk_step(torch.ones(2, 3, 7))
    np.testing.assert_array_equal(after["states"][0], before["states"][0])
    assert np.abs(after["states"][1] - before["states"][1]).max() > 1e-3
