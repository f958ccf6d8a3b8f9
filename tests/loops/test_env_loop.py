"""What the options of a run put around the env loop of a shard."""

from dataclasses import replace
from itertools import product

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.core.types import Ticket
from rlinf_async.lab.virtual.run import predict
from rlinf_async.loops import env_loop as module
from rlinf_async.loops.env_loop import Renewal, env_loop, taking_on
from tests.lab.virtual.given import settings, times
from tests.loops.virtual import run
from tests.making import plan, run_settings, ticket

TICKET = Ticket(shard=1, batch=3, epoch=0, place=0, version=2)


class Shard:
    """Notes what it is told before a rollout."""

    def __init__(self):
        self.told = []

    def take_on(self, place, rollout):
        self.told.append(("take on", place, rollout))

    async def renew(self, step):
        self.told.append(("renew", step))


@pytest.fixture
def loop_of(monkeypatch):
    """The arguments that `run_shard` is given for a shard of a run."""

    def given(run_settings, **more):
        seen = {}

        async def run_shard(**arguments):
            seen.update(arguments)
            await arguments["before"](TICKET)

        monkeypatch.setattr(module, "run_shard", run_shard)
        run(env_loop(run_settings, 1, Shard(), **more))
        return seen

    return given


DETERMINISTIC = {"mode": "train", "deterministic": True}


@pytest.mark.parametrize(
    ("block", "save_every", "overlaps", "told"),
    [
        ({"mode": "train"}, 2, False, []),
        ({"mode": "full"}, 2, True, []),
        ({"mode": "full", "advanced": {"balance": "tasks"}}, 0, True, [("take on", 0, 3)]),
        (DETERMINISTIC, 0, False, []),
        (DETERMINISTIC, 2, False, [("renew", 2)]),
        (DETERMINISTIC, 3, False, []),
    ],
)
def test_before_a_rollout_a_shard_is_told_its_tasks_or_renewed_at_a_checkpoint(
    loop_of, block, save_every, overlaps, told
):
    seen = loop_of(replace(settings(block), save_every=save_every), policy="its own")
    assert (seen["shard"], seen["overlaps"], seen["policy"]) == (1, overlaps, "its own")
    assert seen["env"].told == told


def test_a_planned_run_renews_nothing_at_the_checkpoints_of_the_run_that_it_predicts():
    saving = replace(settings(DETERMINISTIC), save_every=2)
    planned = predict(saving, times())
    assert planned.trained_at == predict(settings(DETERMINISTIC), times()).trained_at


async def test_tasks_are_those_of_the_place_and_the_number_of_the_rollout_whoever_collects_it():
    shard = Shard()
    before = taking_on(shard, plan(rollout_epochs=3))
    for batch, epoch in product(range(4), range(3)):
        await before(Ticket(shard=0, batch=batch, epoch=epoch, place=1, version=0))
    assert shard.told == [("take on", 1, number) for number in range(12)]


def renewal_of(renew, *, deterministic=True, save_every=2):
    asynchrony = AsyncConfig.from_mapping({"mode": "train", "deterministic": deterministic})
    return Renewal(run_settings(asynchrony=asynchrony, save_every=save_every), renew)


@pytest.mark.parametrize(
    ("changes", "versions", "renewed"),
    [
        ({}, [0, 0, 1, 1, 2, 2, 3, 4, 4], [2, 4]),
        ({"save_every": 1}, [0, 1, 1, 2], [1, 2]),
        ({}, [2, 2, 3, 4], [2, 4]),  # of a run that goes on from a checkpoint
        ({"save_every": 0}, [0, 1, 2, 3, 4], []),
        ({"deterministic": False}, [0, 1, 2, 3, 4], []),
    ],
)
async def test_environments_begin_anew_once_at_every_checkpoint_that_is_due(changes, versions, renewed):
    shard = Shard()
    renewal = renewal_of(shard.renew, **changes)
    for version in versions:
        await renewal.before(ticket(version=version))
    assert shard.told == [("renew", step) for step in renewed]


async def test_what_could_not_be_built_is_built_again_at_the_next_attempt():
    attempts = []

    async def renew(step):
        attempts.append(step)
        if len(attempts) == 1:
            raise OSError("no memory")

    renewal = renewal_of(renew)
    with pytest.raises(OSError, match="no memory"):
        await renewal.before(ticket(version=2))
    await renewal.before(ticket(version=2))
    await renewal.before(ticket(version=2))
    assert attempts == [2, 2]
