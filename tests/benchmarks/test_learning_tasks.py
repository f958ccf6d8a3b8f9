"""What is said of learning with `balance: tasks` follows from the runs that are stored."""

import json

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the statistics need SciPy")

from benchmarks.learning.preregistration import load
from benchmarks.learning.tasks import RESULT_FILE, compared, setting_of


@pytest.mark.parametrize("row", json.loads(RESULT_FILE.read_text()), ids=lambda row: row["setting"])
def test_the_stored_comparison_is_that_of_the_stored_runs(row):
    assert compared(row["setting"], row["seeds"]) == row
    exact, tasks = setting_of(row["setting"])
    assert tuple(row["seeds"]) == exact.seeds
    for seed in row["seeds"]:
        stored = json.loads(tasks.path("asynchronous", seed).read_text())
        assert stored["run"] == json.loads(json.dumps(load().record(tasks, "asynchronous", seed)))
        assert stored["run"]["balance"] == "tasks"
    assert exact.path("synchronous", 0) == tasks.path("synchronous", 0)


def test_simulators_play_the_episodes_of_the_place_that_they_take_on():
    pytest.importorskip("metaworld", reason="Meta-World is not installed")
    from benchmarks.learning.simulators import mixed_tasks
    from rlinf_async.lab.demo.simulators.metaworld_task import STATE_DIM
    from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats

    stats = ObservationStats(np.zeros(STATE_DIM), np.ones(STATE_DIM))
    build = mixed_tasks(["drawer-close-v3", "button-press-topdown-v3"], group_size=1, seed=3, stats=stats)
    fast, slow = build(0, 1), build(1, 1)
    slow.begin()
    own = [slow.begin(), slow.decide(np.full((1, 4), 0.5))[0]]
    fast.begin()
    fast.take_on(1, 1)
    assert np.array_equal([fast.begin(), fast.decide(np.full((1, 4), 0.5))[0]], own)
    fast.take_on(0, 1)
    back = fast.begin()
    assert not np.array_equal(back, own[0])
    again = build(0, 1)
    again.begin()
    assert np.array_equal(again.begin(), back)
