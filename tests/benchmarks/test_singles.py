"""The comparison on single tasks of real physics, and what is said of its runs."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning import singles
from benchmarks.learning.preregistered_run import settings_of
from benchmarks.learning.singles import (
    PLANNED_SEEDS,
    TASK_AND_RECIPE_BY_SETTING,
    Run,
    block_of,
    compared,
    report,
    runs,
    task_of,
)
from rlinf_async.config import AsyncConfig

FIRST, SECOND, *_ = TASK_AND_RECIPE_BY_SETTING


@pytest.mark.parametrize(("mode", "balance"), [("full", "exact"), ("tasks", "tasks")])
def test_full_is_as_it_comes_but_for_its_balance_its_shards_and_micro_batches(mode, balance):
    own, plain = (
        AsyncConfig.from_mapping(block) for block in (block_of(task_of(FIRST), mode), {"mode": "full"})
    )
    assert all(own.levels.values())
    assert own.train == plain.train
    assert own.advanced == replace(plain.advanced, balance=balance)
    assert own.rollout.shards == 16


@pytest.mark.parametrize("setting", TASK_AND_RECIPE_BY_SETTING)
def test_shards_hold_whole_groups(setting):
    task, (_, recipe) = task_of(setting), TASK_AND_RECIPE_BY_SETTING[setting]
    assert settings_of(task, recipe, block_of(task, "full"), 40).plan.shards == task.shards
    assert task.envs // task.shards % recipe.group_size == 0


def learning(losses, *, lag=0.9, seeds=PLANNED_SEEDS[:6]):
    """Made-up runs: a rise of 0.5 in four of eight batches, a batch later in `full`, and less by a loss of
    the setting."""
    sync = np.array([0.3, 0.4, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8])
    rows = {}
    for run in runs(seeds):
        curve = sync
        if run.mode != "synchronous":
            loss = losses.get(run.setting, 0.0) * (1 + 0.1 * (run.seed % 2)) + 0.002 * (run.seed % 3)
            curve = np.concatenate([sync[:1], sync[:-1] - loss])
        rows[run] = {"success": curve.tolist(), "mean_lag": [0.0, 0.0, *[lag] * 6]}
    return rows


def row_of(text, setting):
    line = next(line for line in text.splitlines() if line.startswith(f"| {setting} "))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_differences_are_shares_of_what_was_learned_beyond_the_delay_of_a_batch():
    found = compared(learning({FIRST: 0.08}), FIRST, "full", PLANNED_SEEDS[:6])
    unit = (0.1 + 0.3 + 0.4 + 4 * 0.5) / 8
    losses = [0.08 * (1 + 0.1 * (seed % 2)) + 0.002 * (seed % 3) for seed in PLANNED_SEEDS[:6]]
    # The first batch of both is the start, and the moved curve has it twice: seven of eight can lose.
    assert found.beyond_delay.difference == pytest.approx(-np.mean(losses) * 7 / 8 / unit)
    delay = (
        sum((0.3, 0.4, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8)) - sum((0.3, 0.3, 0.4, 0.6, 0.7, 0.8, 0.8, 0.8))
    ) / 8
    assert found.total.difference == pytest.approx(found.beyond_delay.difference - delay / unit)


def test_a_run_is_as_many_batches_late_as_its_curve_is():
    sync = np.array([0.2, 0.3, 0.5, 0.8, 0.9, 0.9])
    for batches in range(1, 4):
        assert singles.batches_late(sync, np.array(singles.moved(sync.tolist(), batches))) == pytest.approx(
            batches
        )
    between = (np.array(singles.moved(sync.tolist(), 1)) + np.array(singles.moved(sync.tolist(), 2))) / 2
    assert singles.batches_late(sync, between) == pytest.approx(1.5)
    assert singles.batches_late(sync, sync + 0.7 / 6) == pytest.approx(-1.0)


def test_the_same_and_less_are_said_where_holm_does():
    said = report(learning({FIRST: 0.1}))
    assert row_of(said, FIRST)[4] == "less"
    # The made-up noise lowers all others by a little, which six seeds see, and which is within 5 %.
    assert row_of(said, SECOND)[4].startswith("the same within 5 %")


def test_a_run_with_too_small_a_lag_is_named_and_left_out():
    rows = learning({})
    rows[Run(FIRST, "full", PLANNED_SEEDS[0])]["mean_lag"] = [0.9, 0.9, *[0.4] * 6]
    said = report(rows)
    assert row_of(said, FIRST)[1] == f"5, without {PLANNED_SEEDS[0]}"
    assert row_of(said, SECOND)[1] == "6"


def test_of_few_seeds_nothing_is_said():
    rows = learning({})
    del rows[Run(SECOND, "full", PLANNED_SEEDS[0])], rows[Run(SECOND, "full", PLANNED_SEEDS[1])]
    said = report(rows)
    assert "|" not in said
    assert f"are there: 4 of {len(PLANNED_SEEDS)}" in said
