"""Costs from step times: found where rows tell them, said to be open where they do not."""

import itertools
from dataclasses import astuple, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from rlinf_async.lab.plan.rows.costs import COST_NAMES, Costs, calibrate, most_telling
from tests.lab.plan.rows.given import COSTS, by_hand, row

PLACEMENTS = (
    {"placement": "collocated"},
    {"placement": "hybrid"},
    *({"placement": "disaggregated", "ratio": ratio} for ratio in ("1:1", "3:1")),
)


def measured(one, costs=COSTS, error=0.0):
    return replace(one, step_s=by_hand(one, costs) * (1 + error))


def synchronous():
    return [measured(row(**placement, gpus=gpus)) for gpus in (8, 16, 32) for placement in PLACEMENTS]


def test_step_times_without_noise_give_nearly_the_costs():
    found = calibrate(synchronous())
    assert astuple(found.costs)[:3] == pytest.approx(astuple(COSTS)[:3], rel=0.03)
    assert found.costs.synchronous_s(row(gpus=256)) == pytest.approx(by_hand(row(gpus=256)), rel=0.01)
    assert found.untold == ()


def test_what_four_rows_with_errors_of_3_percent_say_of_more_gpus():
    """The mean errors that docs/plan.md quotes."""
    errors = {"off": {8: [], 64: [], 256: []}, "train": {8: [], 64: [], 256: []}}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        costs = Costs(*rng.uniform([5, 1, 0.5, 0, 0], [20, 5, 3, 0.1, 0.05]).tolist())
        rows = [measured(one, costs, rng.normal(0, 0.03)) for one in synchronous()]
        found = calibrate(most_telling(rows, 4)).costs
        for (mode, by_gpus), placement in itertools.product(errors.items(), PLACEMENTS):
            for gpus, seen in by_gpus.items():
                one = row(**placement, gpus=gpus, mode=mode)
                seen.append(abs(by_hand(one, found) / by_hand(one, costs) - 1))
    page = " ".join(Path("docs/plan.md").read_text().split())
    for mode, by_gpus in errors.items():
        means = [f"{100 * fmean(seen):.0f}" for seen in by_gpus.values()]
        assert f"{' / '.join(means)} %" in page, (mode, means)


def test_collocated_and_1_to_1_rows_do_not_tell_rollouts_from_training():
    rows = [
        measured(row(placement, gpus=gpus))
        for placement in ("collocated", "disaggregated")
        for gpus in (8, 16, 32)
    ]
    apart = {COST_NAMES[1], COST_NAMES[2]}
    assert apart <= set(calibrate(rows).untold)
    assert not apart & set(calibrate([*rows, measured(row("hybrid"))]).untold)
    told = [replace(rows[0], rollout_s=8 * COSTS.decision_s(8)), *rows[1:]]
    assert not apart & set(calibrate(told).untold)


def test_rows_are_chosen_by_what_they_tell_and_not_by_their_times():
    rows = synchronous()
    chosen = most_telling(rows, 4)
    assert {one.placement for one in chosen} == {"collocated", "hybrid", "disaggregated"}
    assert most_telling([replace(one, workload="x", step_s=2 * one.step_s) for one in rows], 4) == [
        replace(one, workload="x", step_s=2 * one.step_s) for one in chosen
    ]
    assert most_telling([], 4) == []


def test_no_cost_is_negative():
    faster = [measured(row(gpus=gpus), error=-0.2 * index) for index, gpus in enumerate((8, 16, 32))]
    assert min(astuple(calibrate(faster).costs)) >= 0


def test_phases_count_like_step_times():
    one = replace(row(), step_s=1000.0, rollout_s=800.0, training_s=200.0)
    costs = calibrate([one]).costs
    assert 8 * costs.decision_s(16) == pytest.approx(800, rel=0.05)
    assert costs.training_s(one) == pytest.approx(200, rel=0.05)


def test_batches_that_a_simulator_hosts_are_in_the_sum():
    rows = [measured(replace(one, shards=2)) for one in synchronous()]
    assert astuple(calibrate(rows).costs)[:3] == pytest.approx(astuple(COSTS)[:3], rel=0.03)
