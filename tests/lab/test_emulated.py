"""Emulated environments of which two sets play by turns."""

import numpy as np
import pytest

from rlinf_async.lab.emulated import service
from rlinf_async.lab.emulated.env import EmulatedEnv
from rlinf_async.lab.plan.bench import EmulatedSimulators

SERVICE = {"decision_s": 1.0, "cv": 0.5, "reset_s": 2.0}
DECISIONS, ENVS, PLACE = 3, 2, 4


class Section(dict):
    __getattr__ = dict.__getitem__


def env():
    section = Section(
        auto_reset=False,
        ignore_terminations=False,
        max_steps_per_rollout_epoch=10 * DECISIONS,
        service=SERVICE,
        seed=3,
    )
    return EmulatedEnv(section, ENVS, PLACE, 8, None)


@pytest.fixture
def slept(monkeypatch):
    seconds = []
    monkeypatch.setattr(service.time, "sleep", seconds.append)
    return seconds


def played(one, slept, number=None):
    """(rollout number that is shown, seconds slept) of a rollout."""
    slept.clear()
    if number is not None:
        one.take_on(PLACE, number)
    shown, _ = one.reset()
    for _ in range(DECISIONS):
        one.chunk_step(np.zeros((ENVS, 10, 4)))
    one.update_reset_state_ids()
    return int(shown["states"][0, 1]), tuple(slept)


def test_two_sets_by_turns_take_as_long_as_one_that_plays_everything(slept):
    alone = env()
    expected = [played(alone, slept) for _ in range(5)]
    sets = env(), env()
    assert [played(sets[number % 2], slept, number) for number in range(5)] == expected
    assert len({seconds for _, seconds in expected}) == 5


def test_planned_ones_leave_out_what_another_plays():
    simulators = EmulatedSimulators(service=service.EnvService(**SERVICE), seed=3)
    alone, other = (simulators.batch(PLACE * ENVS, ENVS) for _ in range(2))
    alone.reset()
    for _ in range(DECISIONS):
        alone.step()
    other.skip(DECISIONS)
    assert (alone.reset(), alone.step()) == (other.reset(), other.step())
