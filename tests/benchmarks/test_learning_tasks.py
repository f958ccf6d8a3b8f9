"""What is said of learning with `balance: tasks` follows from the runs that are stored."""

import json

import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning.preregistration import load
from benchmarks.learning.tasks import RESULT, compared, setting_of


@pytest.mark.parametrize("row", json.loads(RESULT.read_text()), ids=lambda row: row["setting"])
def test_the_stored_comparison_is_that_of_the_stored_runs(row):
    assert compared(row["setting"], row["seeds"]) == row
    exact, tasks = setting_of(row["setting"])
    assert tuple(row["seeds"]) == exact.seeds
    for seed in row["seeds"]:
        stored = json.loads(tasks.path("asynchronous", seed).read_text())
        assert stored["run"] == json.loads(json.dumps(load().record(tasks, "asynchronous", seed)))
        assert stored["run"]["balance"] == "tasks"
    assert exact.path("synchronous", 0) == tasks.path("synchronous", 0)
