"""Simulators whose episodes have ended are left alone, in a vector environment with LIBERO's calls."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_async.hosts.kit.playing import StandingVectorEnv
from rlinf_async.hosts.rlinf.skipped_work import stands

SIZE = 3


class Vector:
    """As `libero.libero.envs.venv`: counts the steps and pictures of each simulator."""

    def __init__(self):
        self.steps, self.drawn = [0] * SIZE, [0] * SIZE
        self.workers = [
            SimpleNamespace(render=lambda number=number: self._draw(number)) for number in range(SIZE)
        ]

    def __len__(self):
        return SIZE

    def _draw(self, number):
        self.drawn[number] += 1
        return f"{number} at {self.steps[number]}"

    def step(self, action, id=None):
        numbers = range(SIZE) if id is None else np.atleast_1d(id)
        assert len(action) == len(numbers)
        for number in numbers:
            self.steps[number] += 1
        seen = np.array([{"step": self.steps[number]} for number in numbers], dtype=object)
        return seen, np.array([float(each) for each in action]), np.array([number == 0 for number in numbers])

    def render(self):
        return [worker.render() for worker in self.workers]

    def reset(self, id=None):
        return "reset", id


def standing():
    env = SimpleNamespace(env=Vector())
    return StandingVectorEnv.within(SimpleNamespace(unwrapped=env)), env


def test_those_that_stand_are_neither_stepped_nor_drawn_and_give_what_they_gave():
    simulators, env = standing()
    simulators.step([1, 2, 3])
    first = simulators.render()
    simulators.let_play([0, 2])
    seen, rewards, ends = simulators.step([7, 8, 9])
    assert ([each["step"] for each in seen], rewards.tolist()) == ([2, 1, 2], [7.0, 2.0, 9.0])
    assert ends.tolist() == [True, False, False]
    assert simulators.render() == ["0 at 2", "1 at 1", "2 at 2"]
    assert first == ["0 at 1", "1 at 1", "2 at 1"]
    assert (env.env.steps, env.env.drawn) == ([2, 1, 2], [2, 1, 2])
    simulators.let_play(None)
    simulators.step([0, 0, 0])
    assert env.env.steps == [3, 2, 3]


def test_a_call_of_some_simulators_steps_those_among_them_that_play():
    simulators, env = standing()
    simulators.step([1, 2, 3])
    simulators.let_play([2])
    seen, rewards, ends = simulators.step([7, 8], np.array([2, 0]))
    assert ([each["step"] for each in seen], rewards.tolist(), ends.tolist()) == (
        [2, 1],
        [7.0, 1.0],
        [False, True],
    )
    assert simulators.step([9], 1)[1].tolist() == [2.0]
    assert env.env.steps == [1, 1, 2]


def test_what_a_simulator_repeats_is_its_own_copy():
    simulators, _ = standing()
    ends = simulators.step([1, 2, 3])[2]
    ends[:] = True
    simulators.let_play([])
    assert simulators.step([1, 2, 3])[2].tolist() == [True, False, False]


def test_a_simulator_that_was_never_stepped_cannot_stand_and_other_calls_are_the_vector_environments_own():
    simulators, env = standing()
    simulators.let_play([])
    assert simulators.step([5], [1])[1].tolist() == [5.0]
    assert simulators.reset(id=[0]) == ("reset", [0])
    assert env.env.steps == [0, 1, 0]
    assert StandingVectorEnv.within(env) is simulators


@pytest.mark.parametrize(
    ("section", "can"),
    [
        ({"env_type": "libero"}, True),
        ({"env_type": "metaworld"}, True),
        ({"env_type": "metaworld", "env_class": "metaworld_task"}, False),
        ({"env_type": "maniskill"}, False),
        ({"env_type": "robotwin"}, False),
    ],
)
def test_only_simulators_that_were_examined_are_left_alone(section, can):
    assert stands(section) == can
