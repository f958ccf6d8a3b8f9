"""Environments that fail are built anew, as often as the run may; on a virtual clock."""

import asyncio

import pytest

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import ShardFailure
from rlinf_async.loops.env_restarts import ShardRestarts
from rlinf_async.loops.evaluation import evaluate_shard
from rlinf_async.observe.faults import record_nothing
from tests.loops.test_env import Story, collect
from tests.loops.virtual import now, run
from tests.making import ticket


class Env:
    """Building it fails so many times."""

    def __init__(self, fails=0):
        self.built, self._fails = [], fails

    async def restart(self):
        self.built.append(now())
        if self._fails:
            self._fails -= 1
            raise failure("building")
        await asyncio.sleep(2.0)


def failure(word="the door is locked", what="env failed"):
    try:
        raise KeyError(word)
    except KeyError as error:
        made = ShardFailure(f"environments failed: {word}", what=what)
        made.__cause__ = error
        return made


def restarts_of(records=None, *, worked=True, window_s=600.0, **survive):
    record = records.append if records is not None else record_nothing
    return ShardRestarts(3, SurviveConfig(**survive), window_s=window_s, record=record, worked=worked)


async def test_environments_are_built_anew_after_waits_that_grow():
    env, restarts = Env(), restarts_of()
    for _ in range(3):
        await restarts.restart(env, failure(), loss="a rollout")
    assert env.built == [0.5, 0.5 + 2 + 1, 0.5 + 2 + 1 + 2 + 2]


async def test_a_fault_is_recorded_with_what_it_cost_and_what_was_done():
    records = []
    await asyncio.sleep(100)
    restarts = restarts_of(records)
    await restarts.restart(Env(), failure(what="simulator died"), loss="a rollout for batch 2")
    (record,) = records
    assert "KeyError: 'the door is locked'" in record.trace
    facts = record.as_dict()
    assert {name: facts[name] for name in facts if name not in ("time", "trace")} == {
        "process": "env worker",
        "what": "simulator died",
        "shard": 3,
        "error": "KeyError: 'the door is locked'",
        "action": "environments built anew",
        "lost": "a rollout for batch 2",
        "seconds": 2.5,
    }


def test_what_a_fault_has_cost_is_the_rollout_that_was_under_way():
    records = []
    collect(Story([ticket(batch=4)], breaks=1), restarts=restarts_of(records))
    story, restarts = Story(breaks=1), restarts_of(records)
    run(evaluate_shard(shard=7, env=story, policy=story, rollouts=1, restarts=restarts))
    assert [record.lost for record in records] == ["a rollout for batch 4", "a rollout of the evaluation"]


async def fails(restarts, *words):
    for word in words:
        await restarts.restart(Env(), failure(word), loss="a rollout")


async def test_over_the_budget_the_run_ends_with_the_first_error_and_the_count():
    records = []
    restarts = restarts_of(records, env_restarts=2, window_s=60)
    await asyncio.sleep(100)
    with pytest.raises(RuntimeError, match="shard 3 have failed 3 times within 60 s") as raised:
        await fails(restarts, "first", "second", "third")
    assert "env_restarts=2" in str(raised.value)
    assert "the first time: KeyError: 'first'" in str(raised.value)
    assert str(raised.value.__cause__) == "'first'"
    assert [record.action for record in records] == ["environments built anew"] * 2 + ["the run ends"]
    assert [record.lost for record in records] == ["a rollout"] * 3


async def test_what_has_failed_long_ago_is_forgotten():
    env, restarts = Env(), restarts_of(env_restarts=1, window_s=10)
    for _ in range(4):
        await restarts.restart(env, failure(), loss="a rollout")
        await asyncio.sleep(10)
    assert len(env.built) == 4


async def test_what_has_failed_as_long_ago_as_the_window_is_not_counted():
    restarts = restarts_of(worked=False, env_restarts=1, window_s=10)
    for second, word in ((0, "first"), (5, "second")):
        await asyncio.sleep(second - now())
        await fails(restarts, word)
        restarts.worked()
    await asyncio.sleep(10 - now())
    with pytest.raises(RuntimeError, match=r"failed 2 times within 10 s.*the first time: KeyError: 'second'"):
        await fails(restarts, "third")


async def test_environments_that_have_never_worked_are_built_anew_once():
    with pytest.raises(RuntimeError, match=r"failed 2 times before they had completed one rollout.*'first'"):
        await fails(ShardRestarts(3, SurviveConfig()), "first", "second")


async def test_environments_that_have_worked_have_the_whole_budget():
    restarts = restarts_of(worked=False, env_restarts=3)
    await fails(restarts, "first")
    for _ in range(3):
        restarts.worked()
        await fails(restarts, "another")
    with pytest.raises(RuntimeError, match="5 times within 600 s"):
        await fails(restarts, "one more")


def test_without_a_budget_the_first_error_ends_the_run():
    records = []
    with pytest.raises(
        RuntimeError,
        match=r"shard 3 have failed, and async\.survive\.env_restarts=0 .*: KeyError: 'the door is locked'",
    ):
        run(restarts_of(records, env_restarts=0).restart(Env(), failure(), loss="a rollout"))
    assert [record.action for record in records] == ["the run ends"]


def test_building_that_fails_is_tried_again_within_the_budget():
    records, env = [], Env(fails=2)
    restarts = restarts_of(records)
    run(restarts.restart(env, failure(), loss="a rollout"))
    assert env.built == [0.5, 1.5, 3.5]
    again = "building the environments anew has failed"
    assert [record.action for record in records] == [again, again, "environments built anew"]
    assert [record.lost for record in records] == ["a rollout", "nothing more", "nothing more"]


def test_the_time_of_a_restart_is_a_span_that_names_the_error():
    spans = []

    class Spans:
        def span(self, kind, **facts):
            spans.append((kind, facts))
            return self

        def __enter__(self):
            return {}

        def __exit__(self, *_):
            return None

    restarts = ShardRestarts(3, SurviveConfig(), spans=Spans())
    run(restarts.restart(Env(), failure(), loss="a rollout"))
    assert spans == [("restart", {"shard": 3, "error": "KeyError"})]
