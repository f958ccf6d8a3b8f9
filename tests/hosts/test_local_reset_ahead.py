"""`reset_ahead` on the local host: the rollouts of a run without it, from two sets of environments."""

import asyncio

import pytest
import torch

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.local import LocalSettings, LocalTrainer, PointReach
from rlinf_async.hosts.local.shard import Shard
from rlinf_async.observe.meters import BusyMeter
from rlinf_async.observe.spans import read_spans

ENVS, BATCHES, EPOCHS, HORIZON = 4, 4, 2, 3


class Watched(PointReach):
    """Points that note where every episode begins, under the number of the set that they belong to."""

    def __init__(self, first, size, sets):
        super().__init__(size, first=first, group_size=1, seed=3)
        self.begun = []
        sets.append((first, self.begun))

    def reset(self):
        states = super().reset()
        self.begun.append((self._episode - 1, states.copy().tobytes()))
        return states


def settings(*, ahead, **rollout):
    """On-policy, and one shard at a time in a forward pass: nothing depends on who is faster."""
    block = {
        "mode": "rollout",
        "advanced": {"reset_ahead": ahead},
        "rollout": {"shards": 2, "max_batch_size": 2, **rollout},
    }
    return LocalSettings(
        asynchrony=AsyncConfig.from_mapping(block),
        total_envs=ENVS,
        horizon=HORIZON,
        rollout_epochs=EPOCHS,
        batches=BATCHES,
        global_batch_size=ENVS * EPOCHS * HORIZON,
        micro_batch_size=ENVS * EPOCHS * HORIZON,
        hidden=8,
    )


def trained(*, ahead, run_dir=None):
    sets = []
    trainer = LocalTrainer(
        settings(ahead=ahead), lambda first, size: Watched(first, size, sets), run_dir=run_dir
    )
    return trainer.run(), sets


def test_a_run_trains_the_same_weights_and_its_sets_play_by_turns(tmp_path):
    alone, single = trained(ahead=False)
    ahead, pairs = trained(ahead=True, run_dir=tmp_path)
    for name, weights in alone.weights.items():
        assert torch.equal(weights, ahead.weights[name]), name
    assert [metrics["env/return"] for metrics in alone.metrics] == [
        metrics["env/return"] for metrics in ahead.metrics
    ]
    assert (len(single), len(pairs)) == (2, 4)
    for first, begun in single:
        halves = [found for place, found in pairs if place == first]
        assert [[number for number, _ in half][:4] for half in halves] == [[0, 2, 4, 6], [1, 3, 5, 7]]
        together = sorted(episode for half in halves for episode in half)
        assert together[: len(begun)] == begun
    kinds = [span["kind"] for span in read_spans(tmp_path / "trace")]
    assert kinds.count("reset ahead") >= 2 * BATCHES * EPOCHS


def test_a_set_that_is_built_anew_goes_on_after_the_rollouts_of_both():
    sets = []
    shard = Shard(0, settings=settings(ahead=True), build=lambda *of: Watched(*of, sets), busy=BusyMeter())

    async def main():
        shard.skip()
        await shard.reset()
        await shard.restart()
        shard.skip()
        await shard.reset()

    asyncio.run(main())
    shard.close()
    assert [[number for number, _ in begun] for _, begun in sets] == [[1], [3]]


class Endless(PointReach):
    skip = None


def test_environments_that_would_play_every_episode_twice_are_refused():
    trainer = LocalTrainer(settings(ahead=True), lambda first, size: Endless(size, first=first))
    with pytest.raises(ValueError, match=r"no method skip.*use async\.advanced\.reset_ahead=false"):
        trainer.run()
