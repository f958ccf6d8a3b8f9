"""The bench on real workers: one mode of this package, and RLinf's own asynchronous PPO."""

import pytest

from tests.runs.quick_bench import check_a_run_is_measured

pytestmark = pytest.mark.ray


@pytest.mark.nightly  # `full` is run in tests/runs/test_matrix.py; what is measured of it: tests/lab/bench
@pytest.mark.parametrize(("mode", "staleness"), [("full", 1), ("stock-async", 2)])
def test_a_run_of_the_bench_is_measured(mode, staleness, monkeypatch):
    check_a_run_is_measured(monkeypatch, staleness=staleness, mode=mode)
