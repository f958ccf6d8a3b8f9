"""Whenever the machine stops, and whenever the disk is full: the newest checkpoint is whole, and is found."""

import os
import sys

import pytest

from tests.wire.simulation.saving import SavingSchedule

SCHEDULES = int(os.environ.get("DISK_SCHEDULES", "150"))
"""How many are tried; more with DISK_SCHEDULES=4000."""


@pytest.fixture(scope="module")
def found():
    """What each seed came to; what goes wrong is raised with the command that replays it."""
    return [SavingSchedule(seed).play() for seed in range(SCHEDULES)]


def test_a_checkpoint_that_was_told_to_be_there_is_there_after_any_crash(found, capsys):
    crashes, changes = sum(one.crashes for one in found), sum(one.changes for one in found)
    with capsys.disabled():
        sys.stdout.write(f" {len(found)} schedules, {changes} changes of a disk, {crashes} crashes ")


def test_the_schedules_are_as_hostile_as_they_say(found):
    assert sum(one.crashes for one in found) > SCHEDULES
    for count, share in (("full", 1 / 5), ("saved", 1 / 5), ("replaced", 1 / 10)):
        assert sum(getattr(one, count) for one in found) > SCHEDULES * share, count
    assert sum(one.given_up for one in found) > SCHEDULES / 50


def test_a_seed_gives_the_same_schedule_again():
    for seed in range(5):
        assert SavingSchedule(seed).play() == SavingSchedule(seed).play(), seed
