"""A planned run that follows its measurements, beside the same run with fixed settings."""

import pytest

from rlinf_async.hosts.virtual.run import predict
from rlinf_async.hosts.virtual.times import WeightTimes
from rlinf_async.observe.report.page import write_report
from rlinf_async.observe.run_dir import RunDir
from rlinf_async.observe.spans import read_spans
from rlinf_async.observe.trace.command import write_trace
from tests.hosts.virtual.given import settings, step_seconds, times

BATCHES = 30
SENDING = WeightTimes(send_s=5.0)
"""Weights that are under way for so long that a bound of 1 has simulators wait for them, and one of 2 not."""
LATE = 21
"""A step in which whatever is to change has changed, and the run's end is far."""
TASKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)


def planned(adapt, bound, *, run_dir=None, rollout=None, **seconds):
    block = {"mode": "full", "adapt": adapt, "train": {"max_staleness": bound}, "rollout": rollout or {}}
    run = settings(block, shards_per_worker=8, batches=BATCHES)
    return predict(
        run,
        times(**{"sample": 0.1875, "forward": 0.03125, "weights": SENDING, "tasks": TASKS, **seconds}),
        run_dir=run_dir,
    )


def test_a_bound_that_pays_is_in_force_in_the_end_and_as_fast_as_if_it_had_been_from_the_beginning():
    adapts, one, two = planned(True, 2), planned(False, 1), planned(False, 2)
    assert step_seconds(two)[LATE] < 0.95 * step_seconds(one)[LATE]
    assert step_seconds(adapts)[5] == pytest.approx(step_seconds(one)[5])
    assert step_seconds(adapts)[LATE] == pytest.approx(step_seconds(two)[LATE])
    assert [report.staleness.high for report in adapts.reports][6:8] == [1, 1]
    assert adapts.reports[-1].staleness.high == 2
    assert adapts.reports[-1].as_metrics()["async/adapt/max_staleness"] == 2


def test_a_bound_that_cannot_pay_is_left_alone_and_nothing_is_lost():
    """Simulators are what the run waits for: the slowest of them is never held back."""
    slow = {"sample": 0.0625, "weights": WeightTimes()}
    adapts, one = planned(True, 2, **slow), planned(False, 1, **slow)
    assert adapts.trained_at == one.trained_at
    assert max(report.staleness.high for report in adapts.reports) == 1
    assert {report.adapt["async/adapt/changes"] for report in adapts.reports} == {0}


def test_a_wait_that_only_costs_is_dropped():
    wait = {"max_wait_ms": 500}
    adapts, fixed, none = (
        planned(adapt, 1, rollout=rollout, sample=0.0625, forward=0.25, weights=WeightTimes())
        for adapt, rollout in ((True, wait), (False, wait), (False, {}))
    )
    assert step_seconds(adapts)[-1] == pytest.approx(step_seconds(none)[-1])
    assert step_seconds(adapts)[-1] < step_seconds(fixed)[-1]
    assert adapts.reports[-1].adapt["async/adapt/max_wait_ms"] == 0


def test_every_change_and_what_became_of_it_is_in_trace_and_report(tmp_path):
    planned(True, 2, run_dir=tmp_path)
    told = [span for span in read_spans(RunDir(tmp_path).trace) if span["kind"] == "adapt"]
    assert [(span["verdict"], span["knob"], span["before"], span["after"]) for span in told] == [
        ("tried", "max_staleness", 1, 2),
        ("kept", "max_staleness", 1, 2),
    ]
    write_trace(tmp_path, tmp_path / "trace.json")
    assert "adapt" in (tmp_path / "trace.json").read_text()
    write_report([tmp_path], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "What the run has changed by itself" in page
    assert "max_staleness" in page


def test_a_run_that_does_not_adapt_says_nothing_of_it(tmp_path):
    planned(False, 2, run_dir=tmp_path)
    assert not [line for line in RunDir(tmp_path).read_metrics() if "async/adapt/changes" in line]
    write_report([tmp_path], tmp_path / "report.html")
    assert "What the run has changed by itself" not in (tmp_path / "report.html").read_text()
