"""What a run passes on of its settings: to those who read its directory, to its gate and to its requests."""

import asyncio
import json
from dataclasses import asdict

import pytest

from rlinf_async.config import MAX_COMPARED_BYTES, AsyncConfig
from rlinf_async.core.buffer import Ledger
from rlinf_async.core.failures import DeadlineError
from rlinf_async.loops.request_broker import request_broker
from rlinf_async.loops.trajectory_broker import trajectory_broker
from tests.loops.virtual import now, settle
from tests.making import plan, request, rollout, run_settings


def settings(*, layout=None, save_every=0, **block):
    block = {"mode": "full", "train": {"max_staleness": 2}, **block}
    of = {"asynchrony": AsyncConfig.from_mapping(block), "plan": layout or plan(), "save_every": save_every}
    return run_settings(**of, horizon=4, batches=9, global_batch_size=4, micro_batch_size=2, max_batch_size=6)


def test_the_facts_of_a_run_are_plain_data_under_the_names_that_readers_look_for():
    of = settings(rollout={"max_wait_ms": 20, "enabled": False})
    assert json.loads(json.dumps(of.facts())) == {
        "levels": {"train": True, "rollout": False, "streamer": True},
        "max_staleness": 2,
        "steps": 9,
        "plan": asdict(plan()),
        "horizon": 4,
        "max_batch_size": 6,
        "max_wait_s": 0.02,
        "micro_batch_size": 2,
        "optimizer_steps": 2,  # eight samples in steps of four
        "learner_scores": "",
        "skips_ended": False,
        "trains_live_only": False,
    }


MORE = MAX_COMPARED_BYTES + 1


@pytest.mark.parametrize(
    ("block", "trained_bytes", "compared", "remembered"),
    [
        # Those that may have sampled for the batch, and the one that begins it.
        ({}, MAX_COMPARED_BYTES, True, 3),
        ({}, MORE, False, 0),  # too large
        ({"train": {"max_staleness": 2}, "advanced": {"measure_ratios": True}}, MORE, True, 3),
        ({"train": {"max_staleness": 2}, "advanced": {"measure_ratios": False}}, 1.0, False, 0),
        # Every sample is the present policy's.
        ({"train": {"max_staleness": 0}}, 1.0, False, 0),
    ],
)
def test_versions_are_remembered_that_are_compared_or_that_anchor_what_comes_late(
    block, trained_bytes, compared, remembered
):
    of = settings(**block)
    assert of.compares_versions(trained_bytes) == compared
    assert of.remembered_versions(trained_bytes) == remembered


@pytest.mark.parametrize(("version", "admitted"), [(0, 3), (3, 3), (8, 1)])
async def test_the_gate_lets_as_many_batches_ahead_as_the_run_begins_with_and_none_beyond_its_end(
    version, admitted
):
    broker = trajectory_broker(settings(), version=version)
    tickets = []
    ask = asyncio.create_task(broker.admit(0))
    await settle()
    while ask.done() and ask.result() is not None:
        tickets.append(ask.result())
        ask = asyncio.create_task(broker.admit(0))
        await settle()
    ask.cancel()
    assert [ticket.batch for ticket in tickets] == [version + ahead for ahead in range(admitted)]


@pytest.mark.parametrize(("balance", "goes_on"), [("exact", False), ("tasks", True)])
async def test_a_shard_that_is_early_takes_the_place_of_another_only_where_balance_lets_it(balance, goes_on):
    broker = trajectory_broker(settings(train={"max_staleness": 0}, advanced={"balance": balance}))
    await broker.admit(0)
    second = asyncio.create_task(broker.admit(0))
    await settle()
    assert second.done() == goes_on
    second.cancel()


async def test_a_run_that_goes_on_counts_on_in_the_ledger_of_the_one_before():
    of = settings()
    broker = trajectory_broker(of, version=5, ledger=Ledger(produced=10, trained=10))
    ticket = await broker.admit(0)
    await broker.put(ticket, rollout(of.plan, ticket))
    assert (broker.ledger.produced, broker.ledger.trained) == (11, 10)
    assert trajectory_broker(of).ledger == Ledger()


@pytest.mark.parametrize("level_2", [True, False])
async def test_every_wait_ends_at_the_deadline_of_the_run(level_2):
    of = settings(advanced={"deadline_s": 7}, rollout={"enabled": level_2})
    with pytest.raises(DeadlineError, match="7 s"):
        await trajectory_broker(of).take(0, 0, whole=True)
    assert now() == 7
    with pytest.raises(DeadlineError, match="7 s"):
        await request_broker(of).act(request())
    assert now() == 14


async def test_dynamic_batches_are_as_large_and_wait_as_long_as_the_run_says():
    requests = request_broker(settings(rollout={"max_wait_ms": 2000}))
    asked = [asyncio.create_task(requests.act(request(size=3))) for _ in range(3)]
    await settle()
    assert (len(await requests.take(0)), now()) == (2, 0)
    assert (len(await requests.take(0)), now()) == (1, 2)
    for one in asked:
        one.cancel()


@pytest.mark.parametrize(("block", "together"), [({}, 1), ({"deterministic": True}, 2)])
async def test_only_the_passes_of_a_deterministic_run_hold_all_shards_of_a_rank(block, together):
    """Level 2 is off: the shards of one worker are two stages, of which one is answered while one steps."""
    of = settings(**{"mode": "train", "train": {"max_staleness": 1}, **block})
    requests = request_broker(of)
    taking = asyncio.create_task(requests.take(0))
    asked = []
    for shard in range(2):
        requests.begin(shard)
        asked.append(asyncio.create_task(requests.act(request(shard, lap=(0, 0)))))
        await settle()
    assert len(await taking) == together
    for one in asked:
        one.cancel()
