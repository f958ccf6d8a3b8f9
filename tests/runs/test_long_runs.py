"""Runs that are hurt for minutes, as `python -m benchmarks.long_runs` makes them; it keeps their rows."""

import pytest

from benchmarks.kept import Kept
from benchmarks.long_runs.__main__ import RESULTS, SCENARIOS, measure

pytestmark = [pytest.mark.ray, pytest.mark.nightly]


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "kills, verl"])
def test_a_run_that_is_hurt_goes_on_holds_no_more_and_keeps_its_books(name, tmp_path):
    found = measure(name, tmp_path / "runs")
    Kept(RESULTS).add(name, found)
    assert found["passed"], found
