"""What the options of a run put around the env loop of a shard."""

from dataclasses import replace

import pytest

from rlinf_async.core.types import Ticket
from rlinf_async.lab.virtual.run import predict
from rlinf_async.loops import env_loop as module
from rlinf_async.loops.env_loop import env_loop
from tests.lab.virtual.given import settings, times
from tests.loops.virtual import run

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
        ({"mode": "full", "train": {"balance": "tasks"}}, 0, True, [("take on", 0, 3)]),
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
