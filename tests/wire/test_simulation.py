"""Whatever befalls processes, network and nodes: nobody waits for ever, and each piece is trained once."""

import os
import sys
from collections import Counter

import pytest

from tests.wire.simulation.schedule import Schedule

SCHEDULES = int(os.environ.get("WIRE_SCHEDULES", "600"))
"""How many are tried; more with WIRE_SCHEDULES=4000."""


@pytest.fixture(scope="module")
def outcomes():
    """(schedule, outcome) of each seed; what goes wrong is raised with the command that replays it."""
    schedules = [Schedule(seed) for seed in range(SCHEDULES)]
    return [(schedule, schedule.play()) for schedule in schedules]


def test_every_schedule_ends_and_its_books_agree_with_what_was_counted(outcomes, capsys):
    faults = sum((out.faults for _, out in outcomes), Counter())
    with capsys.disabled():
        sys.stdout.write(f" {len(outcomes)} schedules, {dict(faults)} ")


def test_a_run_that_may_outlive_what_befalls_it_trains_everything(outcomes):
    for schedule, out in outcomes:
        if not schedule.faults.fatal:
            assert out.ended_by is None, schedule
            assert len(out.trained) == (
                schedule.batches * schedule.plan.pieces_per_rank * schedule.plan.learner_ranks
            )


def test_the_schedules_are_as_hostile_as_they_say(outcomes):
    faults = sum((out.faults for _, out in outcomes), Counter())
    kinds = (
        "death",
        "part",
        "slow",
        "node",
        "power",
        "cut",
        "half open",
        "channel",
        "coordinator",
        "learner",
    )
    assert min(faults[kind] for kind in kinds) > SCHEDULES / 200, faults
    records = sum((out.records for _, out in outcomes), Counter())
    assert min(records["inference rank died"], records["env worker died"]) > SCHEDULES / 20, records
    assert sum(out.passes > out.answers for _, out in outcomes) > SCHEDULES / 20
    assert sum(out.ended_by is not None for _, out in outcomes) > SCHEDULES / 20


def test_a_seed_gives_the_same_schedule_again():
    for seed in range(20):
        one, other = Schedule(seed).play(), Schedule(seed).play()
        assert (one.seconds, one.turns, one.trained) == (other.seconds, other.turns, other.trained), seed
