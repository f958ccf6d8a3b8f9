import json
import os

import pytest

from rlinf_async.lab.sweep.steps import Averages, read_own, read_stock
from tests.making import step_report


def step(seconds, **changes):
    usual = {"env_steps": 600, "success": 0.1, "busy": {"env": 1.0 / seconds, "learner": 0.5 / seconds}}
    return step_report(seconds=seconds, **{**usual, **changes})


def test_the_first_step_is_left_out_and_the_mean_of_the_others_taken():
    measured = Averages.of([step(60.0), step(1.0), step(2.0), step(6.0)])
    assert measured.step_s == 3.0
    assert measured.env_steps_per_s == 200.0


def test_success_is_the_mean_of_the_last_four_steps_that_report_it():
    rates = [1.0, 0.9, None, 0.2, 0.4, 0.6]
    measured = Averages.of([step(1.0, success=rate) for rate in rates])
    assert measured.success == pytest.approx((0.9 + 0.2 + 0.4 + 0.6) / 4)
    assert Averages.of([step(1.0, success=None), step(1.0, success=None)]).success is None


def test_what_no_step_reports_is_nothing_and_not_zero():
    measured = Averages.of([step(1.0), step(1.0, busy={})])
    assert (measured.rollout_s, measured.learner_s) == (None, None)


@pytest.mark.parametrize("steps", [[], [step(1.0)]])
def test_a_run_of_one_step_cannot_be_measured(steps):
    with pytest.raises(ValueError, match=f"has logged {len(steps)} steps, and the first is not measured"):
        Averages.of(steps)


def test_an_asynchronous_run_is_read_from_its_metrics(tmp_path):
    line = {
        "step": 1,
        "async/step_seconds": 4.0,
        "async/env_steps": 640.0,
        "async/busy/env": 0.5,
        "async/busiest/env": 0.75,
        "async/busy/learner": 0.5,
        "async/busiest/learner": 0.5,
        "env/success_once": 0.25,
    }
    without = {name: value for name, value in line.items() if name != "env/success_once"}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps({**without, 'step': 2})}\n")
    first, second = read_own(tmp_path)
    assert (first.seconds, first.env_steps, first.success) == (4.0, 640, 0.25)
    assert second.success is None
    measured = Averages.of([first, second])
    assert (measured.rollout_s, measured.learner_s) == (3.0, 2.0)


@pytest.fixture
def events(tmp_path):
    """Writes steps as RLinf's metric logger does: a dictionary of scalars per step."""
    writers = pytest.importorskip("torch.utils.tensorboard")

    def write(*steps, below=""):
        with writers.SummaryWriter(str(tmp_path / "tensorboard" / below)) as writer:
            for number, scalars in enumerate(steps):
                for tag, value in scalars.items():
                    writer.add_scalar(tag, value, number)
        return tmp_path

    return write


STOCK = {
    "time/step": 8.0,
    "time/generate_rollouts": 5.0,
    "time/env/env_interact_step": 3.0,
    "time/env/env/bootstrap_step": 1.0,
    "time/actor/actor/recv_traj": 5.0,
    "time/actor/actor/compute_adv": 0.25,
    "time/actor/run_training": 2.0,
    "env/success_once": 0.5,
}


def test_rlinfs_own_run_is_read_from_its_event_files(events):
    quick = {**STOCK, "time/step": 4.0, "env/success_once": 1.0}
    steps = read_stock(events(STOCK, quick), env_steps=640, stages=1)
    assert (steps[0].seconds, steps[0].env_steps, steps[0].success) == (8.0, 640, 0.5)
    assert (steps[0].busiest["env"], steps[0].busiest["learner"]) == (4.0 / 8, 2.25 / 8)
    measured = Averages.of(steps)
    assert (measured.env_steps_per_s, measured.step_s, measured.success) == (160.0, 4.0, 0.75)


def test_pipeline_stages_of_a_worker_share_its_time(events):
    assert read_stock(events(STOCK), env_steps=640, stages=2)[0].busiest["env"] == 2.0 / 8


def test_events_are_found_where_workers_log_apart(events):
    assert len(read_stock(events(STOCK, below="all"), env_steps=640, stages=1)) == 1


def test_a_step_without_episodes_or_timers_reports_none(events):
    (step,) = read_stock(events({"time/step": 8.0}), env_steps=640, stages=1)
    assert (step.busy, step.success) == ({}, None)


def test_a_run_that_has_logged_nothing_is_an_error_that_names_what_is_missing(tmp_path, events):
    with pytest.raises(ValueError, match=r"has left no .*metrics\.jsonl"):
        read_own(tmp_path)
    with pytest.raises(ValueError, match="no TensorBoard events with time/step"):
        read_stock(tmp_path, env_steps=640, stages=1)
    with pytest.raises(ValueError, match="no TensorBoard events with time/step"):
        read_stock(events({"env/return": 1.0}), env_steps=640, stages=1)


@pytest.mark.timeout(20)
def test_metrics_that_cannot_be_read_are_named(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    os.mkfifo(metrics)
    with pytest.raises(ValueError, match=r"metrics\.jsonl cannot be read \(it is no file\)"):
        read_own(tmp_path)
    metrics.unlink()
    metrics.write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl lacks async/step_seconds"):
        read_own(tmp_path)
    metrics.write_text('{"step": \n')
    with pytest.raises(ValueError, match=r"1 line of metrics\.jsonl cannot be read"):
        read_own(tmp_path)
