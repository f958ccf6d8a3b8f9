"""Planned runs whose episodes end within a rollout, against closed forms."""

from collections import Counter
from statistics import fmean

import numpy as np
import pytest

from rlinf_async.lab.lengths import EpisodeLengths
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.times import DurationDraws, SimulatorBatch, SimulatorTimes
from rlinf_async.observe.reading.spans import read_spans
from tests.lab.virtual.given import settings, step_seconds, times

HORIZON = 32
LIKE_LIBERO = EpisodeLengths(shortest=3.75, longest=12.0625, success=0.8)
"""60 to 193 steps of 512, in decisions of 16 steps."""


def longest_of(draws, lengths, *, horizon):
    """The expected maximum of `draws` lengths: the sum over t of 1 - P(a length is at most t) ** draws."""
    times = np.arange(horizon)
    succeeded = np.clip((times - lengths.shortest) / (lengths.longest - lengths.shortest), 0.0, 1.0)
    return float(np.sum(1.0 - (lengths.success * succeeded) ** draws))


@pytest.mark.parametrize("shards", [1, 4, 16])
def test_a_rollout_of_a_shard_lasts_as_long_as_its_longest_episode(shards):
    """With level 2, nothing but simulators and tasks that whoever is free takes, the mean of all shards."""
    lengths = EpisodeLengths(shortest=3.75, longest=12.0625, success=0.9)
    run = settings(
        {"mode": "full", "advanced": {"balance": "tasks"}, "train": {"max_staleness": 8}},
        horizon=HORIZON,
        batches=80,
        episodes_end=True,
        total_envs=16,
        shards_per_worker=shards,
        micro_batch_size=32,
    )
    planned = predict(run, times(reset=0.0, forward=0.0, sample=0.0, lengths=lengths))
    expected = longest_of(16 // shards, lengths, horizon=HORIZON)
    assert fmean(step_seconds(planned)[10:]) == pytest.approx(expected, rel=0.05)


def test_without_levels_a_rollout_lasts_as_long_as_the_longest_episode_of_all():
    run = settings(
        {"mode": "lean"}, horizon=HORIZON, batches=120, episodes_end=True, total_envs=4, shards_per_worker=2
    )
    lengths = EpisodeLengths(shortest=3.75, longest=12.0625, success=0.95)
    planned = predict(run, times(reset=0.5, forward=0.0, sample=0.0, lengths=lengths))
    assert fmean(step_seconds(planned)) == pytest.approx(
        0.5 + longest_of(4, lengths, horizon=HORIZON), rel=0.05
    )


def test_without_skips_a_rollout_lasts_to_the_horizon_and_all_of_it_is_trained():
    sizes = {"horizon": HORIZON, "total_envs": 4, "micro_batch_size": 128}
    dead = {"mode": "streamer", "skip": False}
    ends = predict(settings(dead, episodes_end=True, **sizes), times(lengths=LIKE_LIBERO))
    whole = predict(settings(dead, **sizes), times())
    assert step_seconds(ends) == step_seconds(whole)


def test_what_is_masked_is_neither_trained_nor_anchored():
    third = EpisodeLengths(seen=(8,))
    block = {"mode": "train", "skip": {"masked": True}}
    cost = {"reset": 0.0, "decision": 0.0, "forward": 0.0, "sample": 0.25, "score": 0.5}
    sizes = {"horizon": HORIZON, "total_envs": 8, "episodes_end": True}
    masked = predict(settings(block, **sizes), times(lengths=third, **cost))
    assert step_seconds(masked)[1:] == pytest.approx([8 * 8 * (0.25 + 0.25 * 0.5)] * 4)
    trained = predict(settings({"mode": "train", "skip": False}, **sizes), times(lengths=third, **cost))
    assert step_seconds(trained)[1:] == pytest.approx([8 * (32 * 0.25 + 33 * 0.25 * 0.5)] * 4)


@pytest.mark.parametrize(
    ("masked", "lengths", "scored"),
    [(True, (1, 8), 9), (True, (33,), 2 * 33), (False, (8,), 2 * 9), (False, (33,), 2 * 33)],
)
def test_idle_inference_ranks_score_what_is_trained_and_no_more(tmp_path, masked, lengths, scored):
    """Of pieces of two environments that play to their ends, or to the horizon with a value behind it."""
    sizes = {"horizon": HORIZON, "shards_per_worker": 4, "micro_batch_size": 2 * HORIZON, "batches": 8}
    block = {"mode": "full", "skip": {"masked": masked}}
    # The environments of a piece have one length each, by turns where there are two.
    cost = {"decision": 0.0, "reset": 0.0, "forward": 0.0, "sample": 0.25, "score": 0.5}
    ends = Alternating(seen=lengths)
    predict(settings(block, episodes_end=True, **sizes), times(lengths=ends, **cost), run_dir=tmp_path)
    found = {span["size"] for span in read_spans(tmp_path / "trace") if span["kind"] == "score"}
    most = sizes["shards_per_worker"] * 2
    assert found == {min(most, scored), scored % most or most}


class Alternating(EpisodeLengths):
    """Measured lengths, of one environment after the other."""

    def draw(self, env, rollout, *, horizon, seed):
        return self.seen[env % len(self.seen)]


def test_a_report_says_what_was_left_out_as_a_share_of_the_synchronous_loop():
    run = settings(
        {"mode": "full"}, horizon=HORIZON, total_envs=4, shards_per_worker=2, episodes_end=True, batches=4
    )
    planned = predict(run, times(lengths=EpisodeLengths(seen=(8,))))
    assert {report.skipped["decisions"] for report in planned.reports} == {0.75}
    assert {report.skipped["env_steps"] for report in planned.reports} == {0.75}
    assert {report.env_steps for report in planned.reports} == {4 * HORIZON}


def test_lengths_are_those_of_the_environment_and_the_rollout_whoever_plays():
    simulators = SimulatorTimes(decision=DurationDraws(mean=1.0), lengths=LIKE_LIBERO)
    whole, other = (SimulatorBatch(simulators, first, 4, horizon=HORIZON) for first in (0, 4))
    seen = []
    for _ in range(6):
        whole.reset()
        seen.append(whole.lengths)
    other.take_on(0, 4)
    other.reset()
    assert other.lengths == seen[4]
    assert len(set(seen)) == 6


def test_success_rises_from_rollout_to_rollout_up_to_all():
    lengths = EpisodeLengths(shortest=1.0, longest=4.0, success=0.5, gain=0.1)
    shares = [
        fmean(lengths.draw(env, rollout, horizon=HORIZON, seed=0) < HORIZON for env in range(2000))
        for rollout in (0, 2, 5, 9)
    ]
    assert shares == pytest.approx([0.5, 0.7, 1.0, 1.0], abs=0.03)
    drawn = Counter(lengths.draw(env, 9, horizon=HORIZON, seed=0) for env in range(3000))
    assert drawn.keys() == {2, 3, 4}
    assert [count / 3000 for count in drawn.values()] == pytest.approx([1 / 3] * 3, abs=0.03)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shortest": 5.0, "longest": 4.0}, "shortest=5.0"),
        ({"success": 1.5}, "success=1.5"),
        ({"gain": float("nan")}, "gain=nan"),
        ({"seen": (3, 0)}, "seen="),
        ({"longest": float("inf")}, "longest=inf"),
    ],
)
def test_lengths_that_cannot_be_are_refused_by_name(wrong, said):
    with pytest.raises(ValueError, match=said):
        EpisodeLengths(**wrong)
