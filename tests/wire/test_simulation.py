"""Whatever befalls processes, network and nodes: nobody waits for ever, and each piece is trained once."""

import gc
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

SCHEDULES = int(os.environ.get("WIRE_SCHEDULES", "300"))
"""How many are tried: more than any wrong line of the table needs. More with WIRE_SCHEDULES=4000."""


@pytest.fixture(scope="module")
def outcomes():
    """The outcome of each seed; an error is raised with the command that replays its schedule."""
    found = []
    for seed in range(SCHEDULES):
        found.append(Schedule(seed).play())
        if seed % 50 == 49:
            gc.collect()  # a schedule's memory has descriptors, and its objects refer to each other
    return found


def test_schedules_leave_no_descriptors_open():
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for seed in range(12):
        Schedule(seed).play()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_every_schedule_ends_and_its_books_agree_with_what_was_counted(outcomes, capsys):
    faults = sum((out.faults for out in outcomes), Counter())
    with capsys.disabled():
        sys.stdout.write(f" {len(outcomes)} schedules, {dict(faults)} ")


def test_a_run_that_may_outlive_what_befalls_it_trains_everything(outcomes):
    for seed, out in enumerate(outcomes):
        if not out.may_end:
            assert out.ended_by is None, seed
            assert len(out.trained) == out.pieces, seed


def test_the_schedules_are_as_hostile_as_they_say(outcomes):
    faults = sum((out.faults for out in outcomes), Counter())
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
    records = sum((out.records for out in outcomes), Counter())
    assert min(records["inference rank died"], records["env worker died"]) > SCHEDULES / 20, records
    assert sum(out.passes > out.answers for out in outcomes) > SCHEDULES / 20
    assert sum(out.ended_by is not None for out in outcomes) > SCHEDULES / 20


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
