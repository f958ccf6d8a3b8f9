"""What Meta-World's environments cannot be built from is known without building them."""

import pytest

pytest.importorskip("metaworld", reason="Meta-World is not installed")

from rlinf_async.lab.demo.metaworld_section import ROWS, USUAL_TASK, wrong
from rlinf_async.lab.demo.simulators.metaworld_env import MetaWorldEnvSettings
from rlinf_async.lab.demo.simulators.metaworld_task import ALL_V3_ENVIRONMENTS

SECTION = {"task_name": USUAL_TASK, "max_episode_steps": 20, "total_num_envs": 32, "rollout_epoch": 1}


def reasons(section, model=None):
    return list(wrong({**SECTION, **section}, key="env.train", model=model or {}))


def test_the_rows_are_the_keys_that_the_environment_reads():
    assert set(ROWS) == set(MetaWorldEnvSettings.__dataclass_fields__)
    assert USUAL_TASK in ALL_V3_ENVIRONMENTS


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"image_size": None},
        {"image_size": 0},
        {"image_size": 64, "task_name": "reach-v3"},
        {"seed": None},
    ],
)
def test_a_section_that_makes_environments_is_accepted(section):
    assert reasons(section) == []


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            {"task_name": "reach"},
            "is no task of Meta-World; take one such as push-v3; did you mean 'reach-v3'?",
        ),
        ({"task_name": None}, "env.train.task_name is missing"),
        ({"task_name": 7}, "env.train.task_name=7 must be a text"),
        ({"reward_kind": "sparce"}, "did you mean 'sparse'?"),
        (
            {"reward_kind": None},
            "env.train.reward_kind=null must be one of sparse, dense; the default is sparse",
        ),
        ({"action_repeat": 0}, "env.train.action_repeat=0 must be a whole number of at least 1; nearest: 1"),
        ({"image_size": 8}, "env.train.image_size=8 must be a whole number from 16 to 1024; nearest: 16"),
        ({"processes": 7}, "env.train.processes=7 does not divide env.train.total_num_envs=32; nearest: 8"),
        ({"group_size": 5}, "env.train.group_size=5 does not divide env.train.total_num_envs=32; nearest: 4"),
        ({"obs_stats": "nowhere.npz"}, "env.train.obs_stats=nowhere.npz does not exist"),
        ({"taskname": "x"}, "Meta-World does not read env.train.taskname='x'; did you mean 'task_name'?"),
        ({"is_eval": "maybe"}, "env.train.is_eval='maybe' must be true or false"),
    ],
)
def test_what_stands_against_a_section_is_said_with_its_key(section, words):
    (reason,) = reasons(section)
    assert words in reason.text


@pytest.mark.parametrize("size", [12, 39.0, "39"])
def test_a_policy_of_other_sizes_does_not_fit(size):
    model = {"vla.model.obs_dim": size, "vla.model.action_dim": 4, "vla.model.log_std": 1}
    (reason,) = reasons({}, {**model, "vla.model.model_type": "gaussian_mlp"})
    assert reason.override == "vla.model.obs_dim=39"


def test_sizes_within_a_policy_and_of_other_policies_are_their_own():
    assert reasons({}, {"model.model_type": "gaussian_mlp", "model.head.action_dim": 32}) == []
    assert reasons({}, {"model.model_type": "openpi", "model.action_dim": 32}) == []
