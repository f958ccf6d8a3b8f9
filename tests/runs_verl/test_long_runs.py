"""Ten minutes of a run under kills, as `python -m benchmarks.long_runs` makes them; it keeps the row."""

import pytest

from benchmarks.long_runs.__main__ import RESULTS_FILE, measure
from benchmarks.result_store import ResultStore

pytestmark = [pytest.mark.ray, pytest.mark.nightly]


def test_a_run_under_kills_goes_on_holds_no_more_and_keeps_its_books(tmp_path):
    found = measure("kills, verl", tmp_path / "runs")
    ResultStore(RESULTS_FILE).add("kills, verl", found)
    assert found["passed"], found
