"""Service times from traces of runs whose service times are known: planned ones."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from rlinf_async.lab.plan.calibrate import of_one, times_of
from rlinf_async.lab.plan.job import changed
from rlinf_async.lab.plan.prediction import foresee
from rlinf_async.lab.plan.replay import replay
from rlinf_async.lab.virtual.times import DurationDraws
from rlinf_async.observe.reading.spans import read_spans
from tests.lab.plan.given import job, left_by, slow_down, times


def test_a_trace_gives_back_the_service_times_that_made_it(tmp_path):
    found = times_of(read_spans(left_by(tmp_path) / "trace"), job())
    true = times()
    assert found.simulators.decision.mean == pytest.approx(0.5, rel=0.05)
    assert found.simulators.decision.cv == pytest.approx(0.3, rel=0.15)
    assert found.simulators.reset.mean == pytest.approx(0.75, rel=0.05)
    # Shards 0 to 7 are environments of the four tasks, twice; each is known by its own mean.
    assert found.simulators.tasks[:4] == pytest.approx((0.75, 1.0, 1.25, 1.0), rel=0.15)
    for size in (1, 2, 3):
        assert found.policy.forward_s(size) == pytest.approx(true.policy.forward_s(size), rel=0.01)
    assert found.training.sample_s == pytest.approx(0.0625, rel=0.001)
    assert found.training.score_share == pytest.approx(1 / 3, rel=0.01)
    assert found.training.optimizer_step_s == pytest.approx(0.125, rel=0.001)
    assert found.training.batch_s == pytest.approx(0.25, rel=0.01)
    assert found.way.request_s == pytest.approx(0.015625, rel=0.05)
    assert found.way.put_s == pytest.approx(0.0625, rel=0.001)
    weights = found.weights
    assert (weights.copy_s, weights.send_s) == pytest.approx((0.125, 0.25), rel=0.001)
    assert found.decision_steps == 5


@pytest.mark.parametrize("worker_s", [0.015625, 0.03125])
def test_what_env_workers_do_one_shard_at_a_time_is_told_from_the_way_of_a_request(tmp_path, worker_s):
    """Eight shards wait for the process of their env worker; environments that ask together do not."""
    true = times()
    true = replace(true, way=replace(true.way, worker_s=worker_s))
    run = replay(left_by(tmp_path, true))
    assert run.times.way.worker_s == pytest.approx(worker_s, rel=0.05)
    assert run.times.way.request_s == pytest.approx(0.015625, rel=0.25)
    assert run.close, run.error
    together = changed(run.job, ["async.mode=train"]).settings
    found, known = (foresee("it", together, lasting, draws=3).step_s for lasting in (run.times, true))
    assert found == pytest.approx(known, rel=0.03)


def test_what_hands_over_slowly_before_the_first_batch_is_trained_is_no_cost_of_every_rollout(tmp_path):
    (file,) = (left_by(tmp_path) / "trace").glob("env-worker*")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    first = next(line for line in lines if line.get("kind") == "put")
    first["ended"] += 5.0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = times_of(read_spans(tmp_path / "trace"), job())
    assert found.way.put_s == pytest.approx(0.0625, rel=0.001)


def test_another_setting_is_predicted_from_the_trace_as_well_as_from_the_truth(tmp_path):
    found = times_of(read_spans(left_by(tmp_path) / "trace"), job())
    for overrides in (["async.mode=train"], ["async.rollout.shards=2"], ["async.mode=streamer"]):
        other = changed(job(), overrides).settings
        predicted, true = (foresee("it", other, lasting, draws=3).step_s for lasting in (found, times()))
        assert predicted == pytest.approx(true, rel=0.06), overrides


def test_simulators_in_one_process_are_not_taken_for_as_slow_as_they_were_beside_each_other(tmp_path):
    one_process = {"env": {"train": {"env_type": "metaworld", "processes": 0}}}
    true = times()
    true = replace(true, cores=1, simulators=replace(true.simulators, in_turn=True, tasks=(1.0,)))
    run = replay(left_by(tmp_path, true, one_process))
    assert run.close, run.error
    assert run.times.cores == 1
    assert run.times.simulators.decision.mean == pytest.approx(0.5, rel=0.06)
    off = changed(run.job, ["async.mode=off"]).settings
    found, known = (foresee("it", off, lasting, draws=3).step_s for lasting in (run.times, true))
    assert found == pytest.approx(known, rel=0.08)


def test_a_run_is_replayed_and_a_trace_that_does_not_explain_it_is_said_to_be_doubtful(tmp_path):
    good = replay(left_by(tmp_path))
    assert good.close, good.error
    assert good.warning is None
    slow_down(tmp_path, 1.25)
    doubtful = replay(tmp_path)
    assert not doubtful.close
    assert "does not show" in doubtful.warning


def test_evaluating_and_saving_are_no_part_of_a_step(tmp_path):
    before = replay(left_by(tmp_path)).measured_step_s
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    lines[5]["async/step_seconds"] += 30.0
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with next((tmp_path / "trace").glob("driver*")).open("a") as file:
        file.write(json.dumps({"kind": "evaluate", "began": 30.0, "ended": 60.0, "step": 6}) + "\n")
    assert replay(tmp_path).measured_step_s == pytest.approx(before)


def test_what_is_too_little_is_refused(tmp_path):
    left_by(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "async/step_seconds": 2.0}\n')
    with pytest.raises(ValueError, match="the durations of 1 steps; a plan needs those of at least 3"):
        replay(tmp_path)
    with pytest.raises(ValueError, match="there is no readable trace"):
        times_of([], job())
    with pytest.raises(ValueError, match="no span 'step'"):
        times_of([{"kind": "forward"}], job())
    with pytest.raises(ValueError, match="no plan of shards"):
        job(plan=None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("config.yaml", ["update_epoch: "]),
        ("run.json", ['"horizon": ']),
        ("run.json", ['"total_envs": ', '"max_batch_size": ']),
    ],
)
def test_sizes_that_are_not_of_the_trace_are_refused_before_they_are_planned(tmp_path, file, names):
    path = left_by(tmp_path) / file
    for name in names:
        assert name in path.read_text()
        path.write_text(re.sub(rf"{name}(\d+)", rf"{name}\g<1>000000000", path.read_text()))
    with pytest.raises(ValueError, match="they are not of one run"):
        replay(tmp_path)


@pytest.mark.parametrize("size", [4, 16])
def test_the_slowest_of_several_tells_how_long_one_takes(size):
    truth = DurationDraws(mean=2.0, cv=0.4)
    drawn = truth.stream(np.random.default_rng(1))
    shards = [max(next(drawn) for _ in range(size)) for _ in range(4000)]
    assert (of_one(shards, size).mean, of_one(shards, size).cv) == pytest.approx((2.0, 0.4), rel=0.08)
    turns = [sum(next(drawn) for _ in range(size)) for _ in range(4000)]
    in_turn = of_one(turns, size, in_turn=True)
    assert (in_turn.mean, in_turn.cv) == pytest.approx((2.0, 0.4), rel=0.08)
