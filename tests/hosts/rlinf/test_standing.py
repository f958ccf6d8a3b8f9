"""Simulators whose episodes have ended are left alone, in a vector environment with RLinf's calls."""

from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_async.hosts.rlinf.standing import StandingVectorEnv, stands

SIZE = 3


class Vector:
    """As `rlinf.envs.venv`: counts the steps and pictures of each simulator."""

    def __init__(self):
        self.steps, self.drawn = [0] * SIZE, [0] * SIZE
        self.workers = [
            SimpleNamespace(render=lambda number=number: self._draw(number)) for number in range(SIZE)
        ]

    def _draw(self, number):
        self.drawn[number] += 1
        return f"{number} at {self.steps[number]}"

    def step(self, action, id=None):
        numbers = range(SIZE) if id is None else id
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


def test_calls_of_some_simulators_and_all_others_are_the_vector_environments_own():
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
