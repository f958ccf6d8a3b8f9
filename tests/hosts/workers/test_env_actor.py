"""The environments of an env worker beside veRL's processes, and those that take their place."""

import asyncio

import pytest

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
