"""The environments of an env worker beside veRL's processes, and those that take their place."""

import asyncio

import pytest
import torch

pytest.importorskip("omegaconf", reason="OmegaConf is not installed")
pytest.importorskip("ray", reason="Ray is not installed")

from rlinf_async.hosts.workers import env_actor
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

    reset = chunk_step = update_reset_state_ids = close  # never called


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


class Endless(Seeded):
    """Report no end of an episode."""

    def __init__(self, num_envs, **options):
        super().__init__(**options)
        self.size = num_envs

    def reset(self):
        return {"states": torch.zeros(self.size, 1)}, {}

    def chunk_step(self, actions):
        never = torch.zeros(actions.shape[:2], dtype=torch.bool)
        return {"states": torch.zeros(self.size, 1)}, torch.zeros(actions.shape[:2]), never, never, {}

    def update_reset_state_ids(self):
        pass


@pytest.mark.parametrize(("rank", "sentences"), [(0, 1), (1, 0)])
def test_the_first_shard_of_the_run_looks_for_episodes_without_an_end(monkeypatch, rank, sentences):
    monkeypatch.setattr(env_actor, "load_class", lambda *_: Endless)
    steps = settings().steps_per_decision
    section = {**SECTION, "max_episode_steps": 3 * steps}
    actor = env_actor.EnvActor({"train": section}, settings(), {"train": 3}, rank)
    remarks = []
    monkeypatch.setattr(actor, "remark", lambda sentence, *, what: remarks.append((what, sentence)))

    async def play():
        await actor.initialise()
        shard = actor.train_shard(0)
        await shard.start()
        for _ in range(3):
            await shard.step({"actions": torch.zeros(shard.size, steps, 1)})
        await shard.finish()

    asyncio.run(play())
    assert len(remarks) == sentences
    for what, sentence in remarks:
        assert what == "odd environments"
        assert f"in a rollout of {3 * steps} steps" in sentence
