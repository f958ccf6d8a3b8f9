import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.learning.campaign import complete, rows_of, run_all


@dataclass(frozen=True)
class Cell:
    name: str
    path: Path

    def run(self) -> None:
        self.path.write_text(os.environ["RAY_ADDRESS"])


def test_a_run_that_fails_is_told_of_and_leaves_the_others_alone(tmp_path, capsys):
    good, bad, other = (
        Cell("good", tmp_path / "good"),
        Cell("bad", tmp_path / "no folder" / "bad"),
        Cell("other", tmp_path / "other"),
    )
    assert run_all([bad, good, other], processes=1) == [bad]
    assert [cell.path.read_text() for cell in (good, other)] == ["local"] * 2
    printed = capsys.readouterr().out
    assert printed.index("failed  bad") < printed.index("FileNotFoundError") < printed.index("done  good")


@dataclass(frozen=True)
class Run:
    seed: int
    arm: str = "now"


def test_a_row_is_known_by_the_run_that_has_made_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert rows_of(path, Run) == {}
    path.write_text('{"seed": 1, "success": 0.5}\n{"arm": "before", "seed": 1}\n')
    assert rows_of(path, Run) == {
        Run(1): {"seed": 1, "success": 0.5},
        Run(1, "before"): {"arm": "before", "seed": 1},
    }


def test_a_seed_is_complete_when_all_its_planned_runs_are_there():
    planned = [Run(seed, arm) for seed in (3, 1, 2) for arm in ("now", "before")]
    assert complete(planned, planned) == [3, 1, 2]
    assert complete(planned[1:-1], planned) == [1]
    assert complete([], planned) == []


@pytest.mark.parametrize("name", ["causes", "flow", "pi0", "pictures", "singles"])
def test_the_rows_of_an_experiment_are_of_its_runs(name):
    pytest.importorskip("scipy", reason="the statistics need SciPy")
    experiment = import_module(f"benchmarks.learning.{name}")
    assert set() < set(rows_of(experiment.ROWS_FILE, experiment.Run)) <= set(experiment.runs())
