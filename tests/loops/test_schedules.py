"""Whatever the schedule: nobody waits for ever, each piece is trained once, no older than the bound."""

import os
import sys
from collections import Counter

import pytest

from tests.loops.schedules import BEFORE, Schedule
from tests.loops.virtual import run

SCHEDULES = int(os.environ.get("SCHEDULES", "300"))
"""How many are tried; more with SCHEDULES=4000."""


@pytest.fixture(scope="module")
def schedules():
    """(schedule, outcome) of each seed; what goes wrong is raised with the schedule that made it."""
    found = []
    for seed in range(SCHEDULES):
        schedule = Schedule(seed)
        try:
            found.append((schedule, run(schedule.run())))
        except BaseException as error:
            error.add_note(f"with {schedule}")
            raise
    return found


def test_every_piece_of_every_batch_is_trained_exactly_once_within_the_bound(schedules, capsys):
    staleness, pieces = Counter(), 0
    for schedule, out in schedules:
        plan = schedule.plan
        batches = range(schedule.first, schedule.first + schedule.batches)
        assert set(out.trained.values()) == {1}, schedule
        assert len(out.trained) == len(batches) * plan.pieces_per_rank * plan.learner_ranks, schedule
        assert {key[0] for key in out.trained} == set(batches), schedule
        assert max(out.staleness) <= schedule.bound, schedule
        staleness.update(out.staleness)
        pieces += len(out.trained)
    with capsys.disabled():
        sys.stdout.write(f" {len(schedules)} schedules, {pieces} pieces, {dict(sorted(staleness.items()))} ")


def test_the_books_agree_with_what_was_counted(schedules):
    for schedule, out in schedules:
        ledger, before = schedule.broker.ledger, BEFORE if schedule.first else type(BEFORE)()
        trained = schedule.plan.trajectories_per_batch * schedule.batches
        assert ledger.trained - before.trained == trained, schedule
        assert ledger.env_steps_trained - before.env_steps_trained == trained * schedule.horizon, schedule
        assert ledger.produced - before.produced == out.produced == trained + out.refused, schedule
        assert sum(ledger.refused.values()) - sum(before.refused.values()) == out.refused, schedule
        assert ledger.in_flight == schedule.broker.buffer.held() == 0, schedule
        assert schedule.weights.version == schedule.first + schedule.batches, schedule


def test_every_shard_contributes_equally_unless_it_may_collect_for_any_place(schedules):
    unequal = 0
    for schedule, out in schedules:
        for batch in range(schedule.first, schedule.first + schedule.batches):
            shares = {out.collected[batch, shard] for shard in range(schedule.plan.shards)}
            if not schedule.tasks:
                assert shares == {schedule.plan.rollout_epochs * schedule.plan.envs_per_shard}, schedule
            unequal += len(shares) > 1
    assert unequal > SCHEDULES / 10


def test_the_schedules_are_as_hostile_as_they_say(schedules):
    lags = {lag for schedule, out in schedules for lag in out.staleness if schedule.bound == 3}
    assert lags == {0, 1, 2, 3}
    assert sum(out.mixed for _, out in schedules) > SCHEDULES
    assert sum(out.backwards for _, out in schedules) > 0
    assert sum(out.refused for _, out in schedules) > SCHEDULES
    assert sum(out.short for _, out in schedules) > SCHEDULES
    assert sum(out.left_out for _, out in schedules) > SCHEDULES
    assert sum(out.evaluated for _, out in schedules) > SCHEDULES
    restarts = sum((out.restarts for _, out in schedules), Counter())
    assert min(restarts[kind] for kind in ("env", "inference", "weights")) > SCHEDULES / 4
    assert min(restarts[kind] for kind in ("env worker", "inference rank")) > SCHEDULES / 4
    assert restarts["environments"] > SCHEDULES
    given_up = sum((schedule.broker.ledger.refused for schedule, _ in schedules), Counter())
    assert min(given_up[reason] for reason in ("env failed", "not finite")) > SCHEDULES
    assert sum(out.abandoned for _, out in schedules) > SCHEDULES / 4
    assert sum(schedule.requests.again for schedule, _ in schedules) > SCHEDULES / 10
    for name in (
        "tasks",
        "dynamic",
        "streaming",
        "evaluates",
        "restarts",
        "breaks",
        "deaths",
        "ends_early",
        "first",
        "bound",
        "nodes",
    ):
        assert len({bool(getattr(schedule, name) - (name == "nodes")) for schedule, _ in schedules}) == 2, (
            name
        )
