"""One shard of the local host."""

import asyncio
import threading

import numpy as np
import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.core.failures import EnvironmentsFailed
from rlinf_async.hosts.local import LocalSettings
from rlinf_async.hosts.local.policy import StateEnvs
from rlinf_async.hosts.local.shard import Noise, Shard
from rlinf_async.observe.meters import BusyMeter

ENVS, STEPS = 4, 3


class Counting(StateEnvs):
    """Environments that write every state where the one before was, and know what they were told."""

    state_dim, action_dim = 2, 3

    def __init__(self, first, size):
        self.first, self.told, self.closed = first, [], False
        self.used_in = [threading.current_thread()]
        self._states = np.zeros((size, 2), dtype=np.float32)

    def begin(self):
        self.used_in.append(threading.current_thread())
        self._states[:] = self.first
        return self._states

    def decide(self, actions):
        self.used_in.append(threading.current_thread())
        self.told.append(actions)
        self._states += 1
        return self._states, self._states[:, 0], self._states[:, 1] > self.first + 1

    def close(self):
        self.closed = True


@pytest.fixture
def shard():
    """The second of two shards of four environments."""
    settings = LocalSettings(
        total_envs=8, env_workers=2, horizon=STEPS, global_batch_size=24, micro_batch_size=24, seed=11
    )
    made = Shard(1, settings=settings, build=Counting, busy=BusyMeter(width=2))
    yield made
    made.close()
    assert made._stage.env.closed
    assert not made._stage.env.used_in[0].is_alive()


def test_a_shard_is_the_environments_after_those_of_the_shard_before(shard):
    assert (shard.size, shard.horizon, shard._stage.env.first) == (ENVS, STEPS, ENVS)
    assert shard.sizes == {"state_dim": 2, "action_dim": 3}


def test_a_rollout_starts_without_rewards_and_goes_on_with_what_the_policy_says(shard):
    async def rollout():
        start = await shard.start()
        given = {"actions": torch.full((ENVS, 1, 3), 0.5)}
        return start, [await shard.step(given) for _ in range(2)]

    start, steps = asyncio.run(rollout())
    assert start.observation["states"].tolist() == [[4.0, 4.0]] * ENVS
    assert start.rewards.tolist() == [0.0] * ENVS
    assert start.rewards.dtype == torch.float32
    assert start.ended.tolist() == [False] * ENVS
    # What was shown stays as it was.
    assert [step.observation["states"][0, 0].item() for step in steps] == [5.0, 6.0]
    assert [step.rewards[0].item() for step in steps] == [5.0, 6.0]
    assert [step.ended.all().item() for step in steps] == [False, True]
    assert all((told == 0.5).all() for told in shard._stage.env.told)


def test_a_request_shows_what_is_seen_and_the_noise_of_its_own_environments(shard):
    output = asyncio.run(shard.start())
    asked = shard.observation(output)["obs"]
    assert set(asked) == {"seen", "noise"}
    assert asked["seen"] is output.observation
    of_all = Noise(first=0, size=2 * ENVS, width=3, seed=11).draw()
    assert torch.equal(asked["noise"], of_all[ENVS:])
    assert asked["noise"].shape == (ENVS, 3)
    assert len({tuple(row) for row in of_all.tolist()}) == 2 * ENVS


def test_observations_of_several_fields_are_handed_on_as_they_are():
    class Seeing:
        def __init__(self, first, size):
            self._size = size

        def reset(self):
            return {"picture": torch.ones(self._size, 2), "task": ["reach"] * self._size}, {}

    shard = one_shard(Seeing)
    asked = shard.observation(asyncio.run(shard.start()))["obs"]
    assert asked["seen"]["task"] == ["reach"] * ENVS
    assert torch.equal(asked["seen"]["picture"], torch.ones(ENVS, 2))
    assert asked["noise"].shape == (ENVS, 1)  # a seed
    shard.close()


def test_what_a_shard_does_is_work_of_that_shard(shard):
    asyncio.run(shard.start())
    others, own = shard._busy.pop()
    assert own > others == 0.0


def test_environments_that_cannot_be_built_leave_no_thread_behind():
    def build(first, size):
        built.append(threading.current_thread())
        raise RuntimeError("no simulator")

    built = []
    with pytest.raises(EnvironmentsFailed, match="shard 3"):
        Shard(3, settings=LocalSettings(), build=build, busy=BusyMeter(width=4))
    assert built[0].name.startswith("shard-3")
    built[0].join(timeout=10.0)
    assert not built[0].is_alive()


def one_shard(build, **advanced):
    asynchrony = AsyncConfig.from_mapping({"advanced": advanced})
    sizes = {"total_envs": 8, "env_workers": 2, "horizon": STEPS}
    settings = LocalSettings(global_batch_size=24, micro_batch_size=24, asynchrony=asynchrony, **sizes)
    return Shard(1, settings=settings, build=build, busy=BusyMeter(width=2))


def test_environments_that_fail_are_closed_and_built_anew_in_their_thread_after_the_episodes_begun():
    built = []

    class Counted(Counting):
        def __init__(self, first, size):
            super().__init__(first, size)
            self.skipped = 0
            built.append(self)

        def skip(self, episodes):
            self.skipped = episodes

        def close(self):
            super().close()
            if len(built) == 1:
                raise OSError("closed already")

    shard = one_shard(Counted)

    async def use():
        await shard.start()
        await shard.start()
        await shard.restart()
        await shard.start()
        await shard.restart()

    asyncio.run(use())
    assert [(env.first, env.closed, env.skipped) for env in built] == [
        (4, True, 0),
        (4, True, 2),
        (4, False, 3),
    ]
    assert len({env.used_in[0] for env in built}) == 1
    shard.close()


def test_simulators_that_hang_are_ended_by_the_environments_that_can(shard):
    assert not shard._simulators._abort("no answer")
    shard._stage.env.abort = bool
    assert shard._simulators._abort("no answer")
