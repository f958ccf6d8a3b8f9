"""The confirming experiment on RLinf's pi0 class: what its arms are, and that nobody looks before its end."""

import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning import confirm_pi0
from benchmarks.learning.confirm_pi0 import OVERRIDES_BY_ARM, PLANNED_SEEDS, Run, overrides_of, report, runs
from rlinf_async.compose import compose_config
from rlinf_async.config import AsyncConfig

RISE = [0.2, 0.4, 0.6, 0.85, 0.95, 0.95, 0.95, 0.95]
SECONDS_BY_ARM = {"off": 1.0, "lean": 0.8, "lag0": 0.75, "full": 0.5}


def made_up(loss=0.0):
    """Rows of all planned runs; `full` loses in every batch but the first, by seed a little more or less."""
    rows = {}
    for run in runs():
        own = loss + 0.001 * (run.seed % 3) if run.arm == "full" else 0.0
        success = [RISE[0], *(value - own for value in RISE[1:])]
        seconds = [SECONDS_BY_ARM[run.arm] * (batch + 1) for batch in range(len(RISE))]
        rows[run] = {"success": success, "seconds": seconds, "staleness": float(run.arm == "full")}
    return rows


def test_the_report_computes_nothing_before_the_last_run():
    rows = made_up(0.1)
    assert "less" in report(rows)
    rows.popitem()
    said = report(rows)
    assert "% [" not in said
    assert f"{len(rows)} of {len(rows) + 1} runs are there: nothing is computed before the last." in said


@pytest.mark.parametrize(("loss", "claim"), [(0.0, "less, not below -5 %"), (0.1, "less, by more than 5 %")])
def test_a_loss_is_told_as_one_and_equality_as_such(loss, claim):
    line = next(
        line for line in report(made_up(loss)).splitlines() if line.startswith("| `full` minus `off`")
    )
    assert line.split("|")[4].strip() == claim


def test_seconds_are_ratios_of_pairs_of_seeds():
    said = report(made_up())
    assert "| `full` over `off` | 0.50 [0.50, 0.50] | 0.50 [0.50, 0.50] |" in said
    assert "| `lag0` over `off` | 0.75 [0.75, 0.75] | 0.75 [0.75, 0.75] |" in said


def test_a_seed_without_the_level_is_named_and_left_out():
    rows = made_up()
    rows[Run("lean", PLANNED_SEEDS[0])]["success"] = [0.2] * len(RISE)
    line = next(line for line in report(rows).splitlines() if line.startswith("| `lean` over `off`"))
    assert [cell.strip() for cell in line.split("|")[2:5]] == ["0.80 [0.80, 0.80]"] * 2 + [
        str(PLANNED_SEEDS[0])
    ]


def test_every_seed_has_a_start_of_its_own_which_its_arms_share():
    for arm in OVERRIDES_BY_ARM:
        cfg = compose_config("metaworld_ppo_pi0", overrides_of(Run(arm, 127)), None)
        assert cfg.warm_start.seed == cfg.actor.seed == 127
        assert cfg.runner.max_epochs == confirm_pi0.BATCH_COUNT
        asked = AsyncConfig.from_mapping(dict(cfg["async"]))
        assert all(asked.levels.values()) == (arm in ("lag0", "full"))
        assert asked.max_staleness == (1 if arm == "full" else 0)


def test_each_arm_is_first_as_often_as_the_others():
    first = [next(run.arm for run in runs() if run.seed == seed) for seed in PLANNED_SEEDS]
    assert {first.count(arm) for arm in OVERRIDES_BY_ARM} == {2}


def test_the_pictures_show_all_arms_over_seconds_and_over_environment_steps(monkeypatch, tmp_path):
    plots = pytest.importorskip("benchmarks.learning.plots", reason="pictures need matplotlib")
    monkeypatch.setattr(confirm_pi0.cells, "RESULTS_FOLDER", tmp_path)
    drawn = {}
    monkeypatch.setattr(plots, "_save", lambda figure, name, _: drawn.setdefault(name, figure))
    confirm_pi0.draw(made_up())
    assert set(drawn) == {"confirm_pi0.png", "confirm_pi0-dark.png"}
    seconds, steps = (
        {text.get_text() for text in axis.get_legend().get_texts()}
        for axis in drawn["confirm_pi0.png"].get_axes()
    )
    # The third to the sixth batch are the first four with a mean of 80 % or more.
    assert {"RLinf, synchronous: 6 s to 80%", "full: 3 s to 80%"} <= seconds
    assert {text.split(": ")[-1] for text in steps} == {f"{6 * 64 * 20:,} steps to 80%"}
    rows = made_up()
    rows.popitem()
    drawn.clear()
    confirm_pi0.draw(rows)
    assert not drawn
