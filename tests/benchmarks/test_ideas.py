"""Ideas that were planned: the stored figures are those that the code gives."""

import json

import pytest

from benchmarks.schedules.ideas import OUTPUT, lend, refill

FOUND = json.loads(OUTPUT.read_text())


def test_what_is_stored_of_lending_is_what_a_plan_says_and_never_a_loss():
    assert lend(0.5, 8) == pytest.approx(FOUND["lend"]["training half, answers x8"])
    assert all(one["gain"] >= 1.0 for one in FOUND["lend"].values())


def test_full_batches_of_groups_with_signal_cost_what_they_give_where_simulators_limit():
    found = refill(0.5, 0.5)
    assert found == pytest.approx(FOUND["refill"]["training half, 50% silent"])
    assert found["gain"] == pytest.approx(found["gain_over_skip"] * found["gain_of_skip"])
    assert found["gain"] == pytest.approx(1.0, abs=0.05)
