"""Whatever befalls processes, network and nodes: nobody waits for ever, and each piece is trained once."""

import os
import pickle
import sys
import tomllib
from collections import Counter

import pytest

from tests.wire.simulation.faults import Opened
from tests.wire.simulation.processes import Process
from tests.wire.simulation.schedule import Schedule
from tests.wire.simulation.wrong_lines import LINES
from tests.wrong_lines import ROOT, changed

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
        "late",
        "idle",
        "stranger",
        "stuck",
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


def test_the_wrong_lines_beside_the_simulation_are_lines_of_the_package():
    for line in tomllib.loads(LINES.read_text())["line"]:
        changed((ROOT / line["file"]).read_text(), line["old"], line["new"], file=line["file"])


def test_a_message_of_somebody_without_the_token_would_be_noticed_if_it_were_opened():
    process = Process("env-0", "node 0", "node 0", 0)
    with pytest.raises(AssertionError, match="env-0 has opened what a stranger has sent"):
        process.run(pickle.loads, pickle.dumps((Opened(),)))
