import pytest

from rlinf_async.lab.report.measures import measure
from rlinf_async.lab.report.run_files import RunFiles
from tests.lab.report.making import TRACE, metrics, write_run


def measures(directory, **changes):
    return measure(RunFiles.read(write_run(directory, **changes)))


def test_the_first_step_is_not_measured_and_others_count_by_their_time(tmp_path):
    lines = [
        metrics(1, async__busiest__learner=0.0, async__step_seconds=100.0),
        metrics(2, async__busiest__learner=1.0, async__step_seconds=30.0),
        metrics(3, async__busiest__learner=0.6, async__step_seconds=10.0),
    ]
    found = measures(tmp_path, lines=lines)
    assert found.busiest["learner"] == pytest.approx(0.9)
    assert found.rate == pytest.approx(640 / 40)
    assert found.step_s == 20.0
    assert found.busiest["publication"] == pytest.approx(0.02 / 40)
    assert (
        found.diagnosis.sentence() == "The learner bounds this run: the busiest rank works 90% of the time."
    )
    assert found.efficiency == pytest.approx(0.9)


def test_a_single_step_is_measured_for_want_of_others(tmp_path):
    assert measures(tmp_path, lines=[metrics(1)]).rate == 32.0


def test_without_the_busiest_process_the_mean_stands_for_it(tmp_path):
    lines = [{k: v for k, v in metrics(step).items() if "busiest" not in k} for step in (1, 2)]
    assert measures(tmp_path, lines=lines).busiest["env"] == 0.3


def test_success_is_that_of_the_first_and_last_four_steps(tmp_path):
    found = measures(tmp_path, lines=[metrics(step) for step in range(1, 11)])
    assert found.success == pytest.approx((0.25, 0.85))
    assert found.returns == pytest.approx((2.5, 8.5))


def test_waits_and_durations_come_from_the_trace(tmp_path):
    found = measures(tmp_path)
    assert found.share("learner", "waiting for trajectories") == pytest.approx(2 / 20)
    assert found.share("env", "waiting for actions") == pytest.approx((2 + 18) / 2 / 20)
    assert (found.forward_s, found.queued_s, found.full_batches) == (5.0, 0.5, 1.0)
    assert found.ask_s == pytest.approx(10.0)
    assert found.beside_micro_batches == pytest.approx(2 / 6)
    assert found.driver == pytest.approx({"evaluate": 2 / 20, "save": 0.0})


def test_training_without_a_record_of_micro_batches_is_not_all_beside_them(tmp_path):
    inside = ("micro-batch", "optimizer step")
    learner = [span for span in TRACE["learner rank 0"] if span[0] not in inside]
    assert measures(tmp_path, trace=TRACE | {"learner rank 0": learner}).beside_micro_batches is None


def test_nothing_is_known_of_a_run_without_records(tmp_path):
    found = measures(tmp_path, lines=[], trace={}, summary={})
    assert (found.steps, found.rate, found.diagnosis, found.efficiency, found.refused) == (0,) + (None,) * 4
    assert found.share("env", "stepping") == 0.0
