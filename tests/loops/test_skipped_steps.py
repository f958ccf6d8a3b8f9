import pytest

from rlinf_async.config import AdvancedConfig
from rlinf_async.loops.skipped_steps import SkippedSteps

NAN = float("nan")


def counter(**advanced):
    made = SkippedSteps()
    made.begin(7, AdvancedConfig(**advanced))
    return made


def test_steps_without_finite_gradients_are_counted_until_they_are_told():
    steps = counter()
    assert [steps.step(norm) for norm in (1.0, NAN, float("inf"), 2.0)] == [False, True, True, False]
    assert (steps.pop(), steps.pop()) == ({"async/steps_skipped": 2.0}, {})


def test_three_in_a_row_end_the_run_and_finite_ones_between_them_do_not():
    steps = counter()
    for _ in range(5):
        assert steps.step(NAN)
        assert steps.step(NAN)
        assert not steps.step(1.0)
    steps.step(NAN)
    steps.begin(8, AdvancedConfig())
    steps.step(NAN)
    with pytest.raises(RuntimeError, match="3 optimizer steps in a row, the last of them in batch 8"):
        steps.step(NAN)


def test_the_first_one_may_end_the_run_or_none():
    with pytest.raises(RuntimeError, match="non_finite=stop"):
        counter(non_finite="stop").step(NAN)
    steps = counter(non_finite="off")
    assert all(steps.step(NAN) for _ in range(9))


def test_a_scale_for_half_precision_is_found_by_gradients_that_overflow():
    steps = counter(non_finite="stop")
    assert all(steps.step(NAN, scaled=True) for _ in range(9))
    assert steps.pop() == {"async/steps_skipped": 9.0}
