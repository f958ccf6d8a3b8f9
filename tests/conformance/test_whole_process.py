"""What environments do to the process that they are in, on every host."""

import threading

import pytest

from tests.conformance.environments import Steady
from tests.conformance.hosts import HOSTS, host_or_skip


@pytest.fixture(params=HOSTS)
def host(request):
    return host_or_skip(request.param)


class Watched(Steady):
    """Notes in which thread it is called."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.threads = []

    def reset(self):
        self.threads.append(threading.get_ident())
        return super().reset()

    def chunk_step(self, actions):
        self.threads.append(threading.get_ident())
        return super().chunk_step(actions)

    def update_reset_state_ids(self):
        self.threads.append(threading.get_ident())


def test_all_of_a_rollout_is_done_in_the_one_thread_of_the_shard_with_what_comes_after_it(host):
    with host(Watched) as playing:
        playing.play(2)
        threads = playing.built[-1].threads
    assert len(threads) >= 11
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
