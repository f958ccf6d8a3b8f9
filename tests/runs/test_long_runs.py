"""Runs that are hurt for minutes, as `python -m benchmarks.long_runs` makes them; it keeps their rows."""

import pytest

from benchmarks.long_runs.__main__ import RESULTS_FILE, SCENARIOS_BY_NAME, measure
from benchmarks.result_store import ResultStore

pytestmark = [pytest.mark.ray, pytest.mark.nightly]


@pytest.mark.parametrize("name", [name for name in SCENARIOS_BY_NAME if name != "kills, verl"])
def test_a_run_that_is_hurt_goes_on_holds_no_more_and_keeps_its_books(name, tmp_path):
    found = measure(name, tmp_path / "runs")
    ResultStore(RESULTS_FILE).add(name, found)
    assert found["passed"], found
