"""Plans of runs whose episodes end within a rollout."""

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from rlinf_async.lab.lengths import EpisodeLengths
from rlinf_async.lab.plan.calibrate import times_of
from rlinf_async.lab.plan.job import changed
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.plan.replay import replay
from rlinf_async.observe.reading.spans import read_spans
from tests.lab.plan.given import FACTS, job, left_by, times

MASKS = {
    "env": {"train": {"env_type": "libero", "auto_reset": False, "ignore_terminations": False}},
}
ENDS = {"skips_ended": True, "trains_live_only": True}
LENGTHS = EpisodeLengths(shortest=0.5, longest=3.0, success=0.75)
"""A quarter of the episodes lasts for all six decisions, the others for one, two or three."""


def ending(**plan):
    """Times of episodes that end early, and a job that leaves out what comes then."""
    plain = times()
    lasting = replace(plain, simulators=replace(plain.simulators, lengths=LENGTHS))
    return lasting, job(MASKS, **ENDS, **({"plan": {**FACTS["plan"], **plan}} if plan else {}))


@pytest.fixture
def left(tmp_path, monkeypatch):
    lasting, known = ending()
    monkeypatch.setattr("tests.lab.plan.given.job", lambda config: known)
    return left_by(tmp_path, lasting, MASKS)


@pytest.mark.parametrize("shards", [8, 2])
def test_a_trace_tells_the_lengths_of_episodes_by_the_sizes_of_requests(tmp_path, shards, monkeypatch):
    lasting, known = ending(shards_per_worker=shards)
    monkeypatch.setattr(
        "tests.lab.plan.given.FACTS", {**FACTS, "plan": {**FACTS["plan"], "shards_per_worker": shards}}
    )
    monkeypatch.setattr("tests.lab.plan.given.job", lambda config: known)
    found = times_of(read_spans(left_by(tmp_path, lasting, MASKS) / "trace"), known)
    lengths = found.simulators.lengths.seen
    assert set(lengths) == {1, 2, 3, 6}
    assert fmean(length == 6 for length in lengths) == pytest.approx(0.25, abs=0.12)
    assert np.mean(lengths) == pytest.approx(0.75 * (0.2 + 2 * 0.4 + 3 * 0.4) + 0.25 * 6, rel=0.1)
    # The learner's times are of the samples that it has trained.
    assert found.training.sample_s == pytest.approx(0.0625, rel=0.1)
    assert found.training.score_share == pytest.approx(1 / 3, rel=0.2)


def test_a_run_that_leaves_out_what_follows_an_end_is_replayed_and_planned_without_that(left):
    run = replay(left)
    assert abs(run.error) < 0.05
    true = ending()[0]
    for overrides in (["async.skip=false"], ["async.mode=lean"], ["async.skip.masked=false"]):
        other = changed(run.job, overrides).settings
        assert other.skips_ended == (overrides != ["async.skip=false"])
        found, known = (foresee("it", other, lasting, draws=2).step_s for lasting in (run.times, true))
        assert found == pytest.approx(known, rel=0.08), overrides
    dead = foresee("dead", changed(run.job, ["async.skip=false"]).settings, run.times, draws=2)
    alive = foresee("alive", run.job.settings, run.times, draws=2)
    assert alive.step_s < 0.75 * dead.step_s


def test_a_run_that_steps_to_the_horizon_tells_no_lengths(tmp_path):
    dead = {"async": {"mode": "full", "skip": False}, **MASKS}
    found = job(dead)
    assert not found.settings.skips_ended
    assert found.skips_ended  # where it is asked for
    assert times_of(read_spans(left_by(tmp_path, config=dead) / "trace"), found).simulators.lengths is None


def test_what_a_host_says_that_it_cannot_leave_out_is_planned_as_done():
    assert not job(MASKS, skips_ended=False, trains_live_only=False).settings.skips_ended
    resets = {"env": {"train": {"env_type": "libero", "auto_reset": True}}}
    assert not job({"async": {"mode": "full", "skip": False}, **resets}).skips_ended
