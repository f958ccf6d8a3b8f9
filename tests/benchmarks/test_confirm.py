"""The next experiment on learning: what its arms are, and that nobody looks before its end."""

import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning import cells, confirm
from benchmarks.learning.confirm import (
    ARMS_BY_SETTING,
    PI0,
    PLANNED_SEEDS,
    Run,
    block_of,
    report,
    runs,
    task_of,
)
from rlinf_async.compose import compose_config
from rlinf_async.config import AsyncConfig


def made_up(loss=0.0):
    """Rows of all planned runs; `full` loses in every batch but the first, by seed a little more or less."""
    rise = [0.2, 0.4, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9]
    rows = {}
    for run in runs():
        own = loss + 0.001 * (run.seed % 3) if run.arm == "full" else 0.0
        success = [rise[0], *(value - own for value in rise[1:])]
        step = {"full": 0.5, "lag0": 0.75}.get(run.arm, 1.0)
        rows[run] = {"success": success, "seconds": [step * (batch + 1) for batch in range(len(rise))]}
    return rows


def test_no_run_of_the_plan_has_been_made_and_no_earlier_one_had_its_seeds():
    assert not confirm.ROWS_FILE.exists()
    paths = list(cells.RESULTS_FOLDER.glob("*.jsonl"))
    assert len(paths) > 3
    for path in paths:
        assert not any(f'"seed": {seed},' in path.read_text() for seed in PLANNED_SEEDS)


def test_the_report_computes_nothing_before_the_last_run():
    rows = made_up(0.1)
    assert "not below" in report(rows)
    rows.popitem()
    said = report(rows)
    assert "%" not in said
    assert f"{len(rows)} of {len(rows) + 1} runs are there: nothing is computed before the last." in said


@pytest.mark.parametrize(("loss", "claim"), [(0.0, "not below -5 %"), (0.1, "less")])
def test_a_loss_is_told_as_one_and_equality_as_such(loss, claim):
    line = next(line for line in report(made_up(loss)).splitlines() if line.startswith(f"| {PI0} "))
    assert line.split("|")[4].strip().startswith(claim)


def test_seconds_are_ratios_of_pairs_of_seeds():
    said = report(made_up())
    assert "| `lean` over `off` | 1.00 [1.00, 1.00] |" in said
    assert "| `lag0` over `off` | 0.75 [0.75, 0.75] |" in said


def test_arms_of_mlps_are_off_lean_and_full_as_it_ships():
    for setting in ARMS_BY_SETTING.keys() - {PI0}:
        task, recipe, _ = task_of(setting)
        assert (
            AsyncConfig.from_mapping(block_of(task, "synchronous")).levels
            == AsyncConfig.from_mapping({}).levels
        )
        lean, full = (AsyncConfig.from_mapping(block_of(task, arm)) for arm in ("lean", "full"))
        assert not any(lean.levels.values())
        assert lean.skip == AsyncConfig.from_mapping({"mode": "lean"}).skip
        shipped = AsyncConfig.from_mapping({"mode": "full"})
        assert (full.train, full.advanced, full.skip) == (shipped.train, shipped.advanced, shipped.skip)
        assert full.rollout.shards == task.shards
        assert task.envs // task.shards % recipe.group_size == 0


def test_every_seed_of_pi0_has_a_start_of_its_own_which_its_arms_share():
    for arm in ARMS_BY_SETTING[PI0]:
        overrides = confirm.overrides_of(Run(PI0, arm, 107))
        cfg = compose_config("metaworld_ppo_pi0", overrides, None)
        assert cfg.warm_start.seed == cfg.actor.seed == 107
        levels = AsyncConfig.from_mapping(dict(cfg["async"])).levels
        assert all(levels.values()) == (arm in ("lag0", "full"))
        if arm == "lag0":
            assert AsyncConfig.from_mapping(dict(cfg["async"])).max_staleness == 0
