"""The arms of the experiment on two tasks of unequal speed, and what is made of their runs."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning import causes, cells
from benchmarks.learning.causes import ARM_NAMES, PLANNED_SEEDS, Run, block, report, runs, shares, trained
from benchmarks.learning.preregistered_run import settings_of
from benchmarks.learning.preregistration import load

BATCHES = 8
"""The first of 32; the two learners part before them."""
SETTING = load().setting(causes.BASE_SETTING)


def settings(arm):
    task, recipe = load().tasks[SETTING.task], load().recipes[SETTING.recipe]
    return settings_of(task, recipe, block(arm, SETTING), 10)


def test_each_arm_adds_one_thing():
    levels = {
        arm: [level for level, on in settings(arm).asynchrony.levels.items() if on] for arm in ARM_NAMES
    }
    assert levels["synchronous"] == []
    assert levels["lag"] == ["train"]
    assert levels["mixed"] == ["train", "rollout"]
    assert levels["own"] == levels["before"] == levels["tasks"] == ["train", "rollout", "streamer"]
    assert settings("lag").asynchrony.deterministic
    assert {arm for arm in ARM_NAMES if settings(arm).asynchrony.takes_tasks} == {"tasks"}
    assert settings("before") == settings("own")
    assert settings("own").run.spreads_steps
    assert not settings("mixed").run.streams
    assert all(settings(arm).asynchrony.recomputes for arm in ARM_NAMES if arm != "synchronous")


def test_the_arm_before_solves_in_every_batch_what_the_package_did_and_the_present_one_does_not(monkeypatch):
    stored = json.loads((cells.RESULTS_FOLDER / "preregistered" / "ppo-1-lag1-spread-seed0.json").read_text())
    stated = load()
    short = {name: replace(recipe, batches=BATCHES) for name, recipe in stated.recipes.items()}
    monkeypatch.setattr(causes, "load", lambda: replace(stated, recipes=short))
    found = {arm: trained(Run(arm, 0), "ppo-1-lag1-spread") for arm in ("before", "own")}
    first = stored["success"][:BATCHES]
    assert found["before"]["success"] == first
    assert found["own"]["success"] != first


def learning(losses):
    """Made-up runs: a rise of 0.5 in four of eight batches, and less by a loss of the arm."""
    curve = np.array([0.4, 0.5, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9])
    rows = {}
    for run in runs(PLANNED_SEEDS[:6]):
        loss = losses.get(run.arm, 0.0) * (1 + 0.1 * (run.seed % 2))
        success = np.concatenate([curve[:1], curve[1:] - loss])
        rows[run] = {"success": success.tolist(), "mean_lag": [0.5], "gradient_norm": [1.0, 2.0]}
    return rows


def test_arms_are_shares_of_what_was_learned_against_a_curve_that_is_a_batch_late():
    found = shares(learning({"own": 0.08}), PLANNED_SEEDS[:6])
    unit = (0.1 + 0.2 + 0.4 + 4 * 0.5) / 8
    assert found["synchronous"] == pytest.approx([1.0] * 6)
    assert found["moved"] == pytest.approx([(0.1 + 0.2 + 0.4 + 3 * 0.5) / 8 / unit] * 6)
    assert found["own"] == pytest.approx([1 - 7 * loss / 8 / unit for loss in (0.08, 0.088) * 3])


def test_a_report_says_less_where_holm_does_and_nothing_of_a_single_seed():
    rows = learning({"own": 0.2})
    lines = report(rows).splitlines()
    (own,) = (line for line in lines if line.startswith("| own "))
    (lag,) = (line for line in lines if line.startswith("| lag "))
    assert "| less |" in own
    assert "| more |" in lag  # no batch late at all
    assert any(line.startswith("| `own` minus `mixed` | -") for line in lines)
    alone = {run: row for run, row in rows.items() if run.seed == 10}
    assert "nothing is said" in report(alone)
    few = {run: row for run, row in rows.items() if run.seed < 14}
    assert not any(word in report(few) for word in ("| less", "| more", "| within"))
    del rows[Run("tasks", 10)]
    assert "5 of 30 (11, 12, 13, 14, 15)" in report(rows)
