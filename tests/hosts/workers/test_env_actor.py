"""The environments of an env worker beside veRL's processes, and those that take their place."""

import asyncio
from dataclasses import replace

import pytest
import torch

pytest.importorskip("omegaconf", reason="OmegaConf is not installed")
pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts import tasks
from rlinf_async.hosts.workers import env_actor
from rlinf_async.loops.reset_ahead import ResetAhead
from tests.hosts.workers.given import settings

SECTION = {
    "env_type": "walks",
    "env_class": "walks",
    "total_num_envs": 4,
    "seed": 5,
    "auto_reset": False,
    "ignore_terminations": False,
}


class Seeded:
    """Knows the seed that it was built with, and whether it was closed."""

    def __init__(self, cfg, **_):
        self.seed, self.closed = cfg.seed, False

    def close(self):
        self.closed = True


def test_the_seed_of_what_is_renewed_follows_from_the_step_and_not_from_what_has_failed_before(monkeypatch):
    monkeypatch.setattr(env_actor, "load_class", lambda *_: Seeded)
    actor = env_actor.EnvActor({"train": SECTION}, settings(), {"train": 3}, 0)
    asyncio.run(actor.initialise())
    (first,) = actor.environments("train")
    shard = actor.train_shard(0)
    asyncio.run(shard.restart())
    asyncio.run(shard.renew(4))
    (renewed,) = actor.environments("train")
    assert (first.seed, renewed.seed) == (5, 5 + 4 * 7919)
    assert first.closed
    assert not renewed.closed
    asyncio.run(shard.renew(4))
    assert actor.environments("train")[0].seed == renewed.seed


class Told(Seeded):
    """Knows the rollouts that it has begun, too."""

    def __init__(self, cfg, **given):
        super().__init__(cfg)
        self.place, self.begun = given["seed_offset"], []

    def reset(self):
        return {"states": torch.zeros(2, 1)}, {}

    def take_on(self, place, rollout):
        assert place == self.place
        self.begun.append(rollout)

    def update_reset_state_ids(self):
        pass


class Drawing(Told):
    """Draws its episodes one after the other, and cannot be told which."""

    take_on = None


@pytest.mark.parametrize(("made", "seeds"), [(Told, [5, 5]), (Drawing, [5, 5 + 7919 * 500])])
def test_two_sets_of_environments_play_the_rollouts_of_a_shard_by_turns(made, seeds, monkeypatch):
    for module in (env_actor, tasks):
        monkeypatch.setattr(module, "load_class", lambda *_: made)
    asynchrony = AsyncConfig.from_mapping({"mode": "full", "advanced": {"reset_ahead": True}})
    plan = replace(settings().plan, shards_per_worker=2)
    actor = env_actor.EnvActor(
        {"train": SECTION}, settings(asynchrony=asynchrony, plan=plan), {"train": 3}, 0
    )
    asyncio.run(actor.initialise())
    envs = actor.environments("train")
    assert [env.place for env in envs] == [0, 1, 0, 1]
    assert [envs[place].seed for place in (1, 3)] == seeds

    async def main():
        ahead = ResetAhead(*actor.spare_shards(1), shard=1)

        async def loop():
            for _ in range(4):
                await ahead.start()
                await ahead.finish()

        await ahead.closed_after(loop())

    asyncio.run(main())
    if made is Told:
        assert [envs[place].begun[:2] for place in (1, 3)] == [[0, 2], [1, 3]]
    asyncio.run(actor.spare_shards(1)[1].restart())
    assert actor.environments("train")[3].seed == 5 + 7919 * 501
    assert actor.environments("train")[1] is envs[1]
