"""The pages on dead work state what the committed rows say."""

import json
from pathlib import Path

import pytest

from benchmarks.dead_work import runs

FOLDER = Path(runs.__file__).parent


def test_the_tables_of_whole_runs_are_those_of_their_rows():
    assert runs.table() in (FOLDER / "runs.md").read_text()


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
    lines = runs.table().splitlines()
    assert "| libero: `off` | 4.0, 2.0 | 10.0, 10.0 | 0.50, 0.50 |" in lines
    assert "| libero: `lean` over `off` | 0.50 (0.50 to 0.50) | 0.10 (0.10 to 0.10) |" in lines
    assert "| metaworld: `full` over `off` |  |  |" in lines


@pytest.mark.parametrize("name", ["maniskill", "metaworld"])
def test_a_thousand_steps_of_each_simulator_are_equal(name):
    result = json.loads((FOLDER / "results" / f"thousand-{name}.json").read_text())
    assert (result["simulator"], result["equal"], result["difference"]) == (name, True, None)
    assert result["steps"] >= 1000
    assert result["frames"]["left_out"] > result["frames"]["drawn"]
