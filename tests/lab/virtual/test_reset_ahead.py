"""Planned runs with a spare set of simulators, against schedules that were worked out by hand."""

import pytest

from rlinf_async.lab.report.page import write_report
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.simulators import DurationDraws
from rlinf_async.observe.spans import read_spans
from tests.lab.virtual.given import settings, step_seconds, times

PLAY_S = 4 * (1.0 + 0.25)
"""The last value is waited for beside what follows."""
VALUE_S = 0.25
"""Its pass, which the first request of the next rollout meets where that follows at once."""
AHEAD = {"mode": "full", "advanced": {"reset_ahead": True}}


@pytest.mark.parametrize(
    ("reset_s", "step_s"), [(3.0, PLAY_S + VALUE_S), (PLAY_S, PLAY_S + VALUE_S), (8.0, (8.0 + PLAY_S) / 2)]
)
def test_a_step_is_as_long_as_it_plays_or_half_of_a_turn_that_resets_for_longer(reset_s, step_s):
    planned = predict(settings(AHEAD, batches=9), times(reset=reset_s, sample=0.0))
    ends = planned.trained_at
    assert (ends[7] - ends[1]) / 6 == pytest.approx(step_s)
    alone = predict(settings({"mode": "full"}), times(reset=reset_s, sample=0.0))
    assert step_seconds(alone)[1:] == pytest.approx([reset_s + PLAY_S] * 4)


def test_it_gains_nothing_where_the_learner_is_what_a_run_waits_for():
    slow = times(reset=3.0, sample=0.5)
    ahead, alone = (predict(settings(block), slow) for block in (AHEAD, {"mode": "full"}))
    for planned in (ahead, alone):
        assert step_seconds(planned)[1:] == pytest.approx([16.0] * 4)


def test_resets_wait_for_the_cores_that_play():
    alone, ahead = (
        predict(settings(block, shards_per_worker=8), times(reset=3.0, sample=0.0, cores=1, in_turn=True))
        for block in ({"mode": "full"}, AHEAD)
    )
    assert ahead.trained_at[-1] > 0.9 * alone.trained_at[-1]


def test_a_rollout_takes_as_long_as_it_would_have_without_a_spare():
    def lasted(block):
        drawn = times(decision=DurationDraws(mean=1.0, cv=0.5), reset=0.0, sample=0.0)
        return predict(settings(block, batches=5), drawn).trained_at

    assert lasted(AHEAD) == pytest.approx(lasted({"mode": "full"}))


def test_a_shard_that_waits_for_a_reset_is_busy_and_one_that_resets_beside_playing_is_so_once(tmp_path):
    planned = predict(settings(AHEAD), times(reset=8.0, sample=0.0), run_dir=tmp_path)
    assert max(report.busy["env"].most for report in planned.reports) <= 1.0
    spans = [span for span in read_spans(tmp_path / "trace") if "error" not in span]
    waits = [span["ended"] - span["began"] for span in spans if span["kind"] == "reset"]
    resets = [span["ended"] - span["began"] for span in spans if span["kind"] == "reset ahead"]
    assert set(resets) == {8.0}
    assert waits[0] == 8.0
    assert sum(waits) < sum(resets)
    write_report([tmp_path], tmp_path / "report.html")
    assert "resetting" in (tmp_path / "report.html").read_text()
