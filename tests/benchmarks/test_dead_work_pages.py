"""The pages on dead work state what the committed rows say."""

import json
from pathlib import Path

import pytest

pytest.importorskip("rlinf", reason="a benchmark on RLinf's workers")

from benchmarks.dead_work import learning_on_rlinf, runs
from benchmarks.result_store import read_rows

FOLDER = Path(runs.__file__).parent


FIRST_TURNS, LATER_TURNS = range(3), range(3, 6)


def test_the_tables_of_whole_runs_are_those_of_their_rows():
    page = (FOLDER / "runs.md").read_text()
    assert runs.table(FIRST_TURNS) in page
    later = [line for line in runs.table(LATER_TURNS).splitlines() if line.startswith("| libero")]
    assert len(later) == 7
    assert [line for line in later if line not in page] == []


def test_the_verdicts_on_learning_are_those_of_the_rows():
    page = (FOLDER / "learning.md").read_text()
    lines = learning_on_rlinf.verdicts(read_rows(learning_on_rlinf.RESULTS_FILE)).splitlines()
    assert len(lines) == 6
    assert [line for line in lines if f"    {line}\n" not in page] == []


def test_a_run_that_is_there_is_not_made_again_and_pairs_come_in_the_order_of_the_plan():
    made = [{"algorithm": "ppo", "side": side, "seed": 0} for side in ("off", "lean")]
    made.append({"algorithm": "grpo", "side": "off", "seed": 0})
    missing = learning_on_rlinf.missing_pairs(made)
    assert [next(missing) for _ in range(2)] == [("grpo", 0, ["lean"]), ("ppo", 1, ["off", "lean"])]


def test_with_few_pairs_there_is_no_verdict():
    rows = [
        {"algorithm": "ppo", "side": side, "seed": seed, "success": [0.5, 1.0], "skipped_decisions": 0.0}
        for side in ("off", "lean")
        for seed in range(4)
    ]
    first, *_, last = learning_on_rlinf.verdicts(rows).splitlines()
    assert first.startswith("ppo, area: too few pairs")
    assert last == "grpo: no whole pair"


def test_a_ratio_is_of_the_turns_that_both_sides_have(tmp_path, monkeypatch):
    rows = [
        {"mode": "off", "turn": 0, "seconds_a_batch": 4.0, "cpu_s_a_batch": 10.0},
        {"mode": "off", "turn": 1, "seconds_a_batch": 2.0, "cpu_s_a_batch": 10.0},
        {"mode": "lean", "turn": 1, "seconds_a_batch": 1.0, "cpu_s_a_batch": 1.0},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text(
        "\n".join(json.dumps({"simulator": "libero", "cores_of_others": 0.5, **row}) for row in rows)
    )
    monkeypatch.setattr(runs, "RESULTS_FILE", file)
    lines = runs.table(FIRST_TURNS).splitlines()
    assert "| libero: `off` | 4.0, 2.0 | 10.0, 10.0 | 0.50, 0.50 |" in lines
    assert "| libero: `lean` over `off` | 0.50 (0.50 to 0.50) | 0.10 (0.10 to 0.10) |" in lines
    assert "| metaworld: `full` over `off` |  |  |" in lines


@pytest.mark.parametrize("name", ["libero", "maniskill", "metaworld"])
def test_a_thousand_steps_of_each_simulator_are_equal(name):
    result = json.loads((FOLDER / "results" / f"thousand-{name}.json").read_text())
    assert (result["simulator"], result["equal"], result["difference"]) == (name, True, None)
    assert result["steps"] >= 1000
    assert result["frames"]["left_out"] > result["frames"]["drawn"]
