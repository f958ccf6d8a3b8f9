"""The confirming experiment on learning: what its arms are, and that nobody looks before its end."""

from dataclasses import replace

import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning import cells, confirm, confirm_pi0
from benchmarks.learning.confirm import PLANNED_SEEDS, SETTINGS, Run, block_of, report, runs, task_of
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.tasks import settled

RISE = [0.2, 0.4, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9]


def made_up(losses=(0.0,) * 4):
    """Rows of all planned runs; `full` loses in every batch but the first, by seed a little more or less."""
    rows = {}
    for run in runs():
        loss = losses[SETTINGS.index(run.setting)]
        own = loss + 0.001 * (run.seed % 3) if run.arm in ("full", "tasks") else 0.0
        rows[run] = {"success": [RISE[0], *(value - own for value in RISE[1:])], "mean_lag": [0.0, 0.5, 0.9]}
    return rows


def claims(rows, arm="tasks"):
    lines = [line.split("|") for line in confirm.table(rows, arm).splitlines() if line.startswith("| ")]
    return {cells[1].strip(): cells[4].strip() for cells in lines}


@pytest.mark.parametrize("plan", [confirm, confirm_pi0], ids=["confirm", "confirm_pi0"])
def test_no_other_experiment_had_its_seeds(plan):
    paths = [path for path in cells.RESULTS_FOLDER.glob("*.jsonl") if path != plan.ROWS_FILE]
    assert len(paths) > 3
    for path in paths:
        assert not any(f'"seed": {seed},' in path.read_text() for seed in plan.PLANNED_SEEDS), path


def test_the_report_computes_nothing_of_an_arm_before_its_last_run():
    rows = made_up((0.1,) * 4)
    whole = report(rows)
    assert whole.count("p of not below") == 2
    last = Run(SETTINGS[-1], "tasks", PLANNED_SEEDS[-1])
    del rows[last]
    said = report(rows)
    assert confirm.table(rows, "full") in said
    assert said.count("p of not below") == 1
    assert "79 of 80 runs are there: nothing is computed before the last." in said


def test_equality_is_told_as_such():
    assert set(claims(made_up()).values()) >= {"less, not below -5 %"}
    assert "not shown" not in claims(made_up()).values()


def test_a_loss_is_told_as_one():
    said = claims(made_up((0.1,) * 4))
    assert {said[name] for name in (*SETTINGS, "mean of the four")} == {"less, by more than 5 %"}


def test_a_setting_may_say_nothing_of_itself_if_the_mean_does_not_hold():
    said = claims(made_up((0.2, 0.0, 0.0, 0.0)))
    assert said["mean of the four"] == "less, by more than 5 %"
    assert not any("not below" in said[name] for name in SETTINGS)


def test_a_setting_may_lose_where_the_mean_holds():
    said = claims(made_up((0.05, 0.0, 0.0, 0.0)))
    assert said["mean of the four"] == "less, not below -5 %"
    assert said[SETTINGS[0]] == "less, by more than 5 %"
    assert said[SETTINGS[1]] == "less, not below -5 %"


def test_the_mean_is_that_of_the_settings_of_each_seed():
    losses = (0.01, 0.02, 0.03, 0.04)
    test, _ = confirm.mean_of_settings(made_up(losses), "tasks")
    gain = sum(RISE) / len(RISE) - RISE[0]
    later = len(RISE) - 1
    expected = [
        -sum((loss + 0.001 * (seed % 3)) * later / len(RISE) / gain for loss in losses) / 4
        for seed in PLANNED_SEEDS
    ]
    assert test.difference == pytest.approx(sum(expected) / len(expected))
    assert test.pairs == len(PLANNED_SEEDS)


def test_pairs_with_lean_are_counted():
    rows = made_up()
    assert "`lean` is that of `synchronous` in 20 of 20 pairs" in report(rows)
    one = Run(SETTINGS[0], "lean", PLANNED_SEEDS[0])
    rows[one] = {"success": [*RISE[:-1], 0.0]}
    assert "in 19 of 20 pairs" in report(rows)


def test_arms_are_off_lean_and_full_as_it_ships():
    for setting in SETTINGS:
        task, recipe, _ = task_of(setting)
        off = AsyncConfig.from_mapping(block_of(task, "synchronous"))
        assert off.levels == AsyncConfig.from_mapping({}).levels
        lean, full = (AsyncConfig.from_mapping(block_of(task, arm)) for arm in ("lean", "full"))
        assert not any(lean.levels.values())
        assert lean.skip == AsyncConfig.from_mapping({"mode": "lean"}).skip
        shipped = settled(AsyncConfig.from_mapping({"mode": "full"}), {"env_type": "metaworld"})
        tasks = AsyncConfig.from_mapping(block_of(task, "tasks"))
        assert (tasks.train, tasks.advanced, tasks.skip) == (shipped.train, shipped.advanced, shipped.skip)
        assert full == replace(tasks, advanced=replace(tasks.advanced, balance="exact"))
        assert full.rollout.shards == task.shards
        assert task.envs // task.shards % recipe.group_size == 0
