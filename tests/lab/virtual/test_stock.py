"""RLinf's own modes, planned, against schedules that were worked out by hand."""

import pytest

from rlinf_async.lab.virtual.stock import predict_stock
from rlinf_async.lab.virtual.times import StockTimes
from tests.lab.virtual.given import settings, step_seconds, times

ROLLOUT_S = 4 * 1.0 + 5 * 0.25
TRAINING_S = 32 * 0.0625


def test_a_synchronous_step_is_a_rollout_and_training_with_resets_beside_it():
    assert step_seconds(predict_stock(settings(), times())) == pytest.approx([ROLLOUT_S + TRAINING_S] * 5)
    before = predict_stock(settings(), times(), overlaps_resets=False)
    assert step_seconds(before) == pytest.approx([0.5 + ROLLOUT_S + TRAINING_S] * 5)


def test_an_env_worker_steps_one_stage_after_the_other():
    """Each takes as long as both together, as every environment has a core."""
    planned = predict_stock(settings(), times(reset=0.0), stages=2)
    # While a stage is answered the other one steps, but for the first answer and the last.
    assert step_seconds(planned) == pytest.approx([2 * 4 * 1.0 + 2 * 0.25 + TRAINING_S] * 5)


def test_the_training_pipeline_overlaps_with_rollout_epochs_of_its_own_step():
    epochs = settings(rollout_epochs=2)
    rollouts, training = 2 * ROLLOUT_S, 64 * 0.0625
    none = predict_stock(epochs, times(reset=0.0))
    assert step_seconds(none) == pytest.approx([rollouts + training] * 5)
    pipeline = predict_stock(epochs, times(reset=0.0), mode="pipeline")
    assert step_seconds(pipeline) == pytest.approx(
        [max(rollouts + training / 2, rollouts / 2 + training)] * 5
    )


def test_costs_are_paid_by_decision_and_by_step():
    stock = StockTimes(decision_s=0.125, trajectory_s=0.5, step_s=0.25)
    planned = predict_stock(settings(), times(stock=stock))
    assert step_seconds(planned) == pytest.approx([ROLLOUT_S + 5 * 0.125 + TRAINING_S + 0.75] * 5)


def test_asynchronous_ppo_trains_again_on_what_it_has_and_drops_what_comes_too_late():
    """A learner that is much faster: every other step is on samples that were trained on before."""
    planned = predict_stock(settings(batches=20), times(sample=1 / 256), mode="async-ppo")
    assert sum(planned.fresh) == pytest.approx(10 * 32, abs=32)
    assert set(planned.fresh) == {0, 32}
    # After two steps a rollout that had begun before is too old by the time that it ends.
    slow = predict_stock(settings(batches=20), times(sample=0.25), mode="async-ppo")
    assert set(slow.fresh) == {32}


def test_stages_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="do not divide"):
        predict_stock(settings(total_envs=7, micro_batch_size=7), times(), stages=2)
