"""Environments whose episodes have no end, although they are no longer than a rollout, are named once."""

from typing import ClassVar

import pytest
import torch

from rlinf_async.hosts.contract import Contract
from rlinf_async.hosts.kit.ends import Ends
from tests.conformance.environments import CHUNK, Steady
from tests.conformance.hosts import DECISIONS, SELF_RESETTING, host_or_skip

STEPS = CHUNK * DECISIONS


class Endless(Steady):
    """Their episodes would end with the decision behind the rollout."""

    ends: ClassVar[int] = DECISIONS + 1


class InTime(Steady):
    ends: ClassVar[int] = DECISIONS


class Short(Steady):
    ends: ClassVar[int] = 1


class OneEndless(Steady):
    """The last one of the shard has no end."""

    ends: ClassVar[int] = DECISIONS

    def give(self, seen, rewards, terminations, truncations, info):
        terminations[-1] = truncations[-1] = False
        return super().give(seen, rewards, terminations, truncations, info)


def said_of(name, env_cls, *, rollouts=3, **options):
    said = []
    with host_or_skip(name)(env_cls, say_endless=said.append, **options) as playing:
        playing.play(rollouts)
    return said


@pytest.mark.parametrize("name", SELF_RESETTING)
@pytest.mark.parametrize(("env_cls", "count"), [(Endless, 4), (OneEndless, 1)])
def test_environments_without_an_end_are_named_once(name, env_cls, count):
    (sentence,) = said_of(name, env_cls)
    assert f"the environments of shard 1 ({env_cls.__name__}) have reported no end of {count} " in sentence
    assert f"a rollout of {STEPS} steps, with env.train.max_episode_steps={STEPS}" in sentence


@pytest.mark.parametrize("name", SELF_RESETTING)
@pytest.mark.parametrize("env_cls", [InTime, Short])
@pytest.mark.parametrize("auto_reset", [False, True])
def test_nothing_is_said_of_those_that_end_in_time(name, env_cls, auto_reset):
    assert said_of(name, env_cls, auto_reset=auto_reset) == []


def contract(*ended):
    """A contract of two environments, after a decision with these ends."""
    seen = Contract(0, 2)
    flags = torch.tensor(ended)[:, None]
    observation = {"states": torch.zeros(2, 1)}
    seen.step((observation, torch.zeros(2, 1), flags, torch.zeros_like(flags), {}), steps=1)
    return seen


@pytest.mark.parametrize(("longest", "rollout", "count"), [(4, 4, 1), (3, 4, 1), (5, 4, 0)])
def test_a_rollout_that_is_shorter_than_an_episode_need_not_have_an_end(longest, rollout, count):
    said = []
    Ends.of({"max_episode_steps": longest}, rollout=rollout, say=said.append).look(contract(True, False))
    assert len(said) == count


def test_where_no_section_limits_episodes_nobody_looks():
    assert Ends.of({}, rollout=4, say=print) is None


def test_ends_of_a_rollout_that_failed_or_is_over_are_those_of_no_other():
    for leave in (Contract.prove, Contract.forget):
        seen = contract(True, True)
        assert seen.endless == 0
        leave(seen)
        assert seen.endless == 2
