"""`balance: tasks` on the local host: whoever collects it, a batch is that of the synchronous loop."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.learning.virtual_host import ServiceTimes, train
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer
from rlinf_async.lab.demo.policies.state_policy import GaussianPolicy
from rlinf_async.lab.demo.simulators.point_reach_env import PointReach
from tests.hosts.local_runs import small_policy

ENVS, EPOCHS, BATCHES, GROUP = 16, 2, 5, 2


class Watched(PointReach):
    """Points whose initial states are kept, with the shard that has played them."""

    def __init__(self, first, size, seen):
        super().__init__(size, first=first, group_size=GROUP, seed=3)
        self._own, self._seen, self._fails = first, seen, 0

    def begin(self):
        states = super().begin()
        self._seen.append((self._own, tuple(self._groups), self._episode - 1, states.tobytes()))
        return states


def settings(block):
    return LocalSettings(
        algorithm="grpo",
        asynchrony=AsyncConfig.from_mapping(block),
        total_envs=ENVS,
        horizon=3,
        rollout_epochs=EPOCHS,
        group_size=GROUP,
        batches=BATCHES,
        global_batch_size=ENVS * EPOCHS * 3,
        micro_batch_size=6,
    )


def played(block, speeds):
    """(own first, groups, episode, states) of every rollout, in order of their starts; the run's result."""
    seen = []
    times = ServiceTimes(
        slowest_decision=1.0, speeds=speeds, jitter=0.1, inference=0.01, sample=0.5 / (ENVS * EPOCHS * 3)
    )
    weights = GaussianPolicy(state_dim=2, action_dim=2, hidden=8).state_dict()
    result = train(
        settings(block), lambda first, size: Watched(first, size, seen), times, weights, policy=small_policy
    )
    return seen, result


def rollouts(seen):
    return Counter((groups, episode, states) for _, groups, episode, states in seen)


TASKS = {"mode": "full", "advanced": {"balance": "tasks"}, "rollout": {"shards": 8}}


@pytest.mark.parametrize("speeds", [((0.1, 1.0),), ((0.05, 0.05), (1.0, 1.0))])
@pytest.mark.parametrize("bound", [0, 1])
def test_every_rollout_of_the_synchronous_loop_is_played_once_whoever_is_fast(speeds, bound):
    exact, slow = played({**TASKS, "advanced": {"balance": "exact"}}, speeds)
    block = {**TASKS, "train": {"max_staleness": bound}}
    taken, fast = played(block, speeds)
    assert len(taken) == BATCHES * EPOCHS * 8
    assert rollouts(taken) == rollouts(exact)
    assert max(report.staleness.high for report in fast.local.reports) <= bound
    assert (fast.local.ledger.trained, fast.local.ledger.in_flight) == (ENVS * EPOCHS * BATCHES, 0)
    for batch in fast.batches:
        assert {len(found) for found in batch.solved.values()} == {EPOCHS}
    if bound:
        assert any(groups[0] * GROUP != own for own, groups, _, _ in taken)
        assert fast.batches[-1].seconds < slow.batches[-1].seconds


def test_members_of_a_group_begin_alike_in_whatever_shard_they_are():
    taken, _ = played(TASKS, ((0.1, 1.0),))
    for _, groups, _, states in taken:
        assert groups[0] == groups[1]
        first, second = np.frombuffer(states, dtype=np.float32).reshape(2, 2)
        assert (first == second).all()


def test_a_place_whose_environments_have_failed_is_played_again_with_its_tasks():
    seen = []

    class Failing(Watched):
        def chunk_step(self, actions):
            if self._episode == 4 and not any(entry == "failed" for entry in seen):
                seen.append("failed")
                raise RuntimeError("the simulator is gone")
            return super().chunk_step(actions)

    result = LocalTrainer(settings(TASKS), lambda first, size: Failing(first, size, seen), small_policy).run()
    starts = rollouts(entry for entry in seen if entry != "failed")
    assert seen.count("failed") == 1
    assert sorted(starts.values()) == [1] * (BATCHES * EPOCHS * 8 - 1) + [2]
    assert result.ledger.refused == {"env failed": GROUP}
    assert result.ledger.trained == ENVS * EPOCHS * BATCHES


def test_environments_that_cannot_take_on_tasks_are_refused():
    class Fixed(PointReach):
        take_on = None

    environments = lambda first, size: Fixed(size, first=first, group_size=GROUP)  # noqa: E731
    with pytest.raises(ValueError, match=r"no method take_on; use async\.advanced\.balance=exact"):
        LocalTrainer(settings(TASKS), environments, small_policy).run()


@pytest.mark.parametrize(("method", "balance"), [(PointReach.take_on, "tasks"), (None, "exact")])
def test_auto_is_resolved_by_what_the_environments_can_do(method, balance):
    class Some(PointReach):
        take_on = method

    given = settings({"mode": "full", "rollout": {"shards": 8}})
    trainer = LocalTrainer(given, lambda first, size: Some(size, first=first, group_size=GROUP), small_policy)
    trainer.run()
    assert trainer.settings.asynchrony.advanced.balance == balance


def test_the_virtual_host_decides_nothing_that_a_host_has_left_open():
    with pytest.raises(ValueError, match=r"async\.advanced\.balance=auto must be exact or tasks here"):
        played({"mode": "full", "rollout": {"shards": 8}}, ((0.1, 1.0),))
