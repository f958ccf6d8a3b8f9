"""`reset_ahead` on RLinf's workers: two sets of simulators, and every rollout trained once."""

from dataclasses import replace

import pytest

from rlinf_async.lab.bench import cell
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.observe.spans import read_spans
from tests.runs.conftest import Run, small
from tests.runs.test_bench import QUICK
from tests.runs.test_matrix import overrides

pytestmark = pytest.mark.ray


@pytest.mark.nightly  # such a run is below; what is measured of it: tests/lab/bench
def test_a_run_that_resets_ahead_is_measured(monkeypatch):
    resetting = replace(QUICK, env=replace(QUICK.env, reset_s=0.3))
    monkeypatch.setitem(cell.SCENARIOS_BY_NAME, "resetting", resetting)
    result = BenchCell(scenario="resetting", mode="full-reset-ahead", repetition=0, warm_up=3, steps=4).run()
    assert "error" not in result, result["error"]
    assert result["retrained"] == 0
    assert result["staleness_max"] <= 1
    assert result["overlap_efficiency"] is None
    assert result["own_bounds_s"]["env"] < result["bounds_s"]["env"]


@pytest.mark.shared_run(
    small("metaworld_ppo_mlp", *overrides("metaworld_ppo_mlp", train=True, rollout=True, streamer=True))
)
def test_real_simulators_are_reset_ahead(ended: list[Run]):
    for run in ended:
        spans = read_spans(run.directory / "trace")
        rollouts = [span for span in spans if span["kind"] == "rollout"]
        resets = [span for span in spans if span["kind"] == "reset ahead" and "error" not in span]
        assert len(resets) >= len(rollouts) > 0
        assert all(span["batch"] - span["oldest"] <= 1 for span in rollouts)
        assert "+ in flight 0 + 0 refused" in run.output
