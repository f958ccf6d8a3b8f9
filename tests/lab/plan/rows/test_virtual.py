"""The run of a row on virtual time takes as long as a formula says."""

import pytest

from rlinf_async.lab.plan.rows import virtual
from rlinf_async.lab.plan.rows.costs import Costs
from rlinf_async.lab.plan.rows.virtual import step_of
from tests.lab.plan.rows.given import COSTS, by_hand, row

PLACEMENTS = (
    {"placement": "collocated"},
    {"placement": "hybrid"},
    {"placement": "disaggregated"},
    {"placement": "disaggregated", "ratio": "3:1"},
)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda one: " ".join(one.values()))
@pytest.mark.parametrize("gpus", [8, 256])
@pytest.mark.parametrize("mode", ["off", "train", "rollout", "train+rollout"])
def test_a_planned_row_takes_as_long_as_the_formula_says(placement, gpus, mode):
    one = row(**placement, gpus=gpus, mode=mode)
    # Two batches of environments begin at the same time, and are out of step from the first decision on.
    close = 0.03 if "rollout" in mode else 1e-6
    assert step_of(one, COSTS) == pytest.approx(by_hand(one), rel=close)


@pytest.mark.parametrize(
    "costs", [COSTS, Costs(12.0, 4.0, 6.0, 0.0, 0.0), Costs(12.0, 4.0, 0.5, 0.0, 2.0)], ids=str
)
@pytest.mark.parametrize("channel", ["one", "none"])
@pytest.mark.parametrize("overlap", ["epochs", "steps"])
def test_it_does_whatever_the_longest_part_is(costs, overlap, channel):
    one = row(mode="train", overlap=overlap, channel=channel)
    assert step_of(one, costs) == pytest.approx(by_hand(one, costs), rel=1e-6)


def test_two_batches_of_a_vectorised_simulator_take_twice_as_long():
    alone, split = (row(simulator="vectorised", mode=mode, epochs=4) for mode in ("off", "rollout"))
    seconds = [step_of(one, COSTS) for one in (alone, split)]
    rollouts = 4 * COSTS.decision_s(16)
    assert seconds[1] - seconds[0] == pytest.approx(rollouts, rel=0.01)
    assert seconds == pytest.approx([by_hand(one) for one in (alone, split)], rel=0.01)


def test_level_3_hands_over_as_pieces_come_through_the_channel():
    whole, pieces = (row(mode=mode, gpus=8, ratio="3:1") for mode in ("train+rollout", "full"))
    costs = Costs(12.0, 4.0, 1.0, 0.0, 0.5)
    late = by_hand(whole, costs) - by_hand(row(mode="rollout", ratio="3:1"), Costs(12.0, 4.0, 0, 0, 0))
    gained = step_of(whole, costs) - step_of(pieces, costs)
    assert 0 < gained < late


@pytest.mark.parametrize("mode", ["off", "train", "full"])
def test_all_gpus_take_as_long_as_the_fewest_of_their_ratio(monkeypatch, mode):
    one = row(ratio="3:1", mode=mode)
    fewest = step_of(one, COSTS)
    monkeypatch.setattr(virtual, "_unit", lambda _: 1)
    # With level 3 the order in which pieces pass the channel differs a little.
    assert step_of(one, COSTS) == pytest.approx(fewest, rel=0.02 if mode == "full" else 1e-6)
