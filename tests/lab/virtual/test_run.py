"""Planned runs against schedules that were worked out by hand."""

from dataclasses import replace

import pytest

from rlinf_async.lab.report.page import write_report
from rlinf_async.lab.trace import write_trace
from rlinf_async.lab.virtual.run import predict
from rlinf_async.lab.virtual.times import WeightTimes
from rlinf_async.observe.reading.spans import read_spans
from rlinf_async.observe.reading.status import status_of
from tests.lab.virtual.given import settings, step_seconds, times

ROLLOUT_S = 0.5 + 4 * 1.0 + 5 * 0.25
"""A reset, four decisions, and the answers to five requests."""
TRAINING_S = 32 * 0.0625
"""Eight environments with four decisions each."""


def test_without_levels_a_step_is_a_rollout_and_its_training():
    # Level 3 with one micro-batch for a batch of one piece: nothing can overlap.
    planned = predict(settings({"mode": "streamer"}, micro_batch_size=32), times())
    assert step_seconds(planned) == pytest.approx([ROLLOUT_S + TRAINING_S] * 5)


def test_with_level_1_a_step_is_the_longer_of_the_two():
    block = {"mode": "train"}
    assert step_seconds(predict(settings(block), times())) == pytest.approx([ROLLOUT_S] * 5)
    slow = predict(settings(block), times(sample=0.25))
    assert step_seconds(slow)[1:] == pytest.approx([32 * 0.25] * 4)


def test_the_anchor_is_a_pass_over_all_samples_and_the_last_observations():
    planned = predict(settings({"mode": "train"}), times(sample=0.25, score=0.5))
    anchor_s = (4 + 1) * 8 * 0.25 * 0.5
    assert step_seconds(planned)[1:] == pytest.approx([32 * 0.25 + anchor_s] * 4)


def test_with_level_2_a_shard_waits_for_its_own_environments_alone():
    """Without it a rollout is as slow as the slower task; with it, each shard is as fast as its own."""
    slow_and_fast = times(tasks=(1.0, 2.0), sample=0.0)
    together = predict(settings({"mode": "train"}), slow_and_fast)
    assert step_seconds(together) == pytest.approx([0.5 + 4 * 2.0 + 5 * 0.25] * 5)
    apart = predict(settings({"mode": "full"}, shards_per_worker=8, batches=8), slow_and_fast)
    # As many forward passes, but the slow ones meet each other alone after the first; never slower than both.
    # The last value of a rollout is waited for beside the reset of the next one.
    assert all(
        0.5 + 4 * 2.0 + 4 * 0.25 <= step <= 0.5 + 4 * 2.0 + 10 * 0.25 for step in step_seconds(apart)[1:]
    )


def test_with_free_slots_and_exact_tasks_a_step_takes_the_mean_of_the_tasks_and_not_the_slowest():
    slow_and_fast = times(tasks=(1.0, 3.0), reset=0.0, forward=0.0, sample=0.0)
    sizes = {"shards_per_worker": 8, "batches": 8}
    apart = predict(settings({"mode": "full"}, **sizes), slow_and_fast)
    taken = predict(settings({"mode": "full", "advanced": {"balance": "tasks"}}, **sizes), slow_and_fast)
    assert step_seconds(apart)[1:] == pytest.approx([4 * 3.0] * 6)
    # Eight simulators share four rollouts of 4 s and four of 12 s; at first it is not known which are slow.
    assert step_seconds(taken)[2:] == pytest.approx([4 * 2.0] * 5)
    assert max(report.staleness.high for report in taken.reports) <= 1


def test_a_planned_rollout_takes_as_long_as_the_place_that_it_is_for(tmp_path):
    run = settings({"mode": "full", "advanced": {"balance": "tasks"}}, shards_per_worker=8, batches=6)
    predict(run, times(tasks=(1.0, 3.0), reset=0.0, forward=0.0, sample=0.0), run_dir=tmp_path)
    rollouts = [span for span in read_spans(tmp_path / "trace") if span["kind"] == "rollout"]
    assert len(rollouts) == 6 * 8
    for span in rollouts:
        assert span["ended"] - span["began"] == pytest.approx(4.0 if span["place"] % 2 == 0 else 12.0)
    assert sum(span["place"] != span["shard"] for span in rollouts) > 10


def test_new_weights_keep_the_learner_for_a_copy_and_travel_beside_it():
    weights = WeightTimes(copy_s=1.0, send_s=2.0, load_s=0.5)
    planned = predict(settings({"mode": "train"}), times(sample=0.25, weights=weights))
    assert step_seconds(planned)[1:] == pytest.approx([32 * 0.25 + 1.0] * 4)


def test_a_vectorised_simulator_takes_as_long_for_half_of_its_environments():
    whole = predict(settings({"mode": "rollout"}), times(vectorised=True, forward=0.0, sample=0.0))
    halves = predict(
        settings({"mode": "rollout"}, shards_per_worker=2), times(vectorised=True, forward=0.0, sample=0.0)
    )
    assert step_seconds(whole) == pytest.approx([4.5] * 5)
    assert step_seconds(halves) == pytest.approx([9.0] * 5)


def test_cores_are_shared():
    few = predict(settings({"mode": "rollout"}), times(cores=2, reset=0.0, forward=0.0, sample=0.0))
    assert step_seconds(few) == pytest.approx([4 * 4.0] * 5)


def test_learner_ranks_wait_for_each_other():
    costs = {"optimizer_step_s": 1.5}
    planned = predict(
        settings({"mode": "train"}, learner_ranks=2, micro_batch_size=16), times(sample=1.0, training=costs)
    )
    assert step_seconds(planned)[1:] == pytest.approx([16 * 1.0 + 1.5] * 4)


def test_a_deterministic_run_acts_by_one_lag():
    planned = predict(settings({"mode": "train", "deterministic": True}, batches=5), times())
    assert [report.staleness.as_dict() for report in planned.reports[1:]] == [
        {"min": 1, "mean": 1, "max": 1}
    ] * 4


def test_a_planned_run_opens_like_any_other(tmp_path):
    planned = predict(settings({"mode": "full"}, shards_per_worker=4), times(), run_dir=tmp_path)
    kinds = {span["kind"] for span in read_spans(tmp_path / "trace")}
    assert {"gate", "reset", "ask", "step", "put", "rollout", "queued", "idle", "forward", "load"} <= kinds
    assert {"fetch", "accept", "finish", "micro-batch", "learn", "copy", "send"} <= kinds
    assert "6 steps" in "\n".join(status_of(tmp_path))
    assert write_trace(tmp_path, tmp_path / "trace.json") > 100
    assert write_report([tmp_path], tmp_path / "report.html").exists()
    assert (planned.ledger.trained, planned.ledger.in_flight) == (48, 0)


def test_where_inference_scores_the_learner_pays_for_the_first_pieces_alone(tmp_path):
    sizes = {"shards_per_worker": 8, "micro_batch_size": 4, "batches": 8}
    slow = times(decision=0.0, reset=0.0, forward=0.0, sample=0.25, score=0.5)
    run = settings({"mode": "full"}, **sizes)
    own = predict(replace(run, learner_scores="it is to be compared with"), slow)
    helped = predict(run, slow, run_dir=tmp_path)
    training_s, pass_s = 32 * 0.25, (4 + 1) * 0.25 * 0.5
    assert step_seconds(own)[1:] == pytest.approx([training_s + 8 * pass_s] * 6)
    # One piece of eight is scored by the learner, the others beside its training, which takes longer.
    assert step_seconds(helped)[1:] == pytest.approx([training_s + pass_s] * 6)
    spans = [span for span in read_spans(tmp_path / "trace") if span["kind"] == "score"]
    # In the first batch pieces come one by one, and the learner is as fast as inference.
    assert 7 * 7 * (4 + 1) <= sum(span["size"] for span in spans) < 8 * 7 * (4 + 1)


def test_scores_wait_for_requests_of_env_shards_and_slow_them_by_one_pass_at_most():
    sizes = {"shards_per_worker": 8, "micro_batch_size": 4, "batches": 8}
    # Environments set the pace: a request may find inference in the pass for one piece.
    bound = times(decision=8.0, sample=0.25, score=0.5)
    run = settings({"mode": "full"}, **sizes)
    helped, own = predict(run, bound), predict(replace(run, learner_scores="slow"), bound)
    passes_s = (4 + 1) * (4 + 1) * 0.25 * 0.5
    assert step_seconds(helped)[-1] <= step_seconds(own)[-1] + passes_s
