"""What the options of a run put around the env loop of a shard."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from rlinf_async.core.types import Ticket
from rlinf_async.lab.virtual.run import predict
from rlinf_async.loops import env_loop as module
from rlinf_async.loops.env_loop import env_loop
from rlinf_async.loops.reset_ahead import ResetAhead
from rlinf_async.observe.spans import UNRECORDED
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

    def skip(self):
        self.told.append(("skip",))


@pytest.fixture
def loop_of(monkeypatch):
    """The arguments that `run_shard` is given for a shard of a run, and the sets that were built for it."""

    def given(run_settings, **more):
        seen, built = {}, []

        async def run_shard(**arguments):
            seen.update(arguments)
            if "before" in arguments:
                await arguments["before"](TICKET)

        def build():
            built.append(Shard())
            return built[-1]

        monkeypatch.setattr(module, "run_shard", run_shard)
        run(env_loop(run_settings, 1, build, waiting=nullcontext, spans=UNRECORDED, **more))
        return seen, built

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
    seen, (shard,) = loop_of(replace(settings(block), save_every=save_every), policy="its own")
    assert seen["env"] is shard
    assert (seen["shard"], seen["overlaps"], seen["policy"]) == (1, overlaps, "its own")
    assert shard.told == told


def test_environments_that_are_reset_ahead_are_two_sets_by_two_calls_or_as_the_host_gives_them(loop_of):
    ahead = settings({"mode": "full", "advanced": {"reset_ahead": True}})
    seen, built = loop_of(ahead)
    assert isinstance(seen["env"], ResetAhead)
    assert [shard.told for shard in built] == [[], [("skip",)]]
    sets = Shard(), Shard()
    _, built = loop_of(ahead, build_spares=lambda: sets)
    assert built == []
    assert sets[1].told == [("skip",)]


def test_a_planned_run_renews_nothing_at_the_checkpoints_of_the_run_that_it_predicts():
    saving = replace(settings(DETERMINISTIC), save_every=2)
    planned = predict(saving, times())
    assert planned.trained_at == predict(settings(DETERMINISTIC), times()).trained_at
