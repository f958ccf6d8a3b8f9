"""Environments that collect for any place are told which one, on every host."""

import threading

from tests.conformance.environments import Steady


class Taking(Steady):
    """Notes whose tasks it is told to take on, after how many resets and in which thread."""

    resets = 0
    told = ()

    def reset(self):
        self.resets += 1
        return super().reset()

    def take_on(self, place, rollout):
        self.told += ((place, rollout, self.resets, threading.get_ident()),)


def test_environments_are_told_whose_tasks_they_take_on_before_the_reset_in_their_thread(host):
    with host(Taking) as playing:
        playing.play(decisions=1)
        env = playing.built[-1]
        before = env.resets
        assert env.told == ()
        playing.shard.take_on(5, 7)
        playing.play(decisions=1)
        ((place, number, resets, thread),) = env.told
        assert (place, number, resets, env.resets) == (5, 7, before, before + 1)
        assert thread != threading.get_ident()
