"""The bench under veRL, on real workers."""

import pytest

pytest.importorskip("verl", reason="veRL is not installed")

from tests.runs.quick_bench import check_a_run_is_measured

pytestmark = pytest.mark.ray


@pytest.mark.nightly  # what is measured of a run: tests/lab/bench
def test_a_run_of_the_bench_under_verl_is_measured(monkeypatch):
    check_a_run_is_measured(monkeypatch, staleness=1, mode="full", host="verl")
