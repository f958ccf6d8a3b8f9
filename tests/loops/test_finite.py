import numpy as np
import pytest
import torch

from rlinf_async.config import AdvancedConfig
from rlinf_async.core.failures import ShardFailure
from rlinf_async.loops.finite import SkippedSteps, check_answer, check_shown, check_weights, not_finite

GOOD = torch.ones(2, 3)
BAD = torch.tensor([1.0, float("nan"), float("inf")])


def check(shown, **advanced):
    settings = AdvancedConfig(**advanced)
    check_shown(settings, not_finite(settings, shown))


def test_finite_numbers_pass_and_so_does_what_is_no_number():
    check({"rewards": GOOD, "task": ["reach", "push"], "wrist": None, "count": 3})
    check({"rewards": torch.tensor([1, 2]), "picture": torch.full((2, 2), 255, dtype=torch.uint8)})
    check({"rewards": torch.full((2,), 3e38)})  # whose sum overflows
    check({"rewards": np.full(2, 3e38, dtype=np.float32), "names": np.array(["a", "b"], dtype=object)})


@pytest.mark.parametrize(
    ("shown", "named"),
    [
        ({"rewards": BAD}, "2 of 3 rewards"),
        ({"rewards": BAD.numpy()}, "2 of 3 rewards"),
        ({"rewards": BAD.half()}, "2 of 3 rewards"),
        ({"camera": {"left": {"depth": BAD.numpy()}}}, "2 of 3 camera.left.depth"),
        ({"hands": [GOOD, BAD.numpy(), {"tip": BAD}]}, "4 of 12 hands"),
        ({"hands": (1.0, float("nan"), 2)}, "1 of 2 hands"),
        ({"height": float("-inf")}, "1 of 1 height"),
        ({"height": np.float32("nan")}, "1 of 1 height"),
        ({"parts": np.array([GOOD.numpy(), None, BAD.numpy()], dtype=object)}, "2 of 9 parts"),
        ({"spectrum": torch.tensor([complex(1, float("nan")), 2j])}, "1 of 2 spectrum"),
    ],
)
def test_environments_are_to_blame_for_what_they_have_shown_at_any_depth(shown, named):
    with pytest.raises(ShardFailure) as raised:
        check({"states": GOOD, **shown})
    assert str(raised.value).endswith(f"not finite: {named}")
    assert (raised.value.what, raised.value.reason) == ("not finite", "not finite")


def test_everything_that_is_not_finite_is_named_with_its_count():
    bad = {"rewards": BAD, "states": GOOD, "images": BAD[:2], "ended": torch.ones(2, dtype=torch.bool)}
    with pytest.raises(ShardFailure) as environments:
        check(bad)
    assert str(environments.value).endswith("not finite: 2 of 3 rewards, 1 of 2 images")
    with pytest.raises(RuntimeError, match="resume from a checkpoint before it") as policy:
        check_answer(AdvancedConfig(), bad, version=7)
    assert "not finite (2 of 3 rewards, 1 of 2 images)" in str(policy.value)


def test_a_run_may_be_told_to_stop_at_that():
    with pytest.raises(RuntimeError, match=r"2 of 3 rewards .*non_finite=stop") as raised:
        check({"rewards": BAD}, non_finite="stop")
    assert not isinstance(raised.value, ShardFailure)


@pytest.mark.parametrize("non_finite", ["refuse", "stop"])
def test_a_policy_that_makes_them_of_finite_observations_ends_the_run(non_finite):
    with pytest.raises(RuntimeError, match=r"policy of version 7 .*2 of 3 logprobs") as raised:
        check_answer(AdvancedConfig(non_finite=non_finite), {"logprobs": BAD, "values": None}, version=7)
    assert not isinstance(raised.value, ShardFailure)


def test_nobody_looks_where_nobody_wants_to_know():
    check({"rewards": BAD}, non_finite="off")
    check_answer(AdvancedConfig(non_finite="off"), {"logprobs": BAD}, version=7)


def test_weights_that_are_not_finite_are_named_before_they_are_published():
    good = {"layer.weight": GOOD, "steps": torch.tensor(3)}
    check_weights(5, good)
    with pytest.raises(RuntimeError, match=r"weights of version 5 are not finite \(2 of 3 layer.bias\)"):
        check_weights(5, {**good, "layer.bias": BAD.bfloat16()})


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        (3, "(2 of 3 w0, 2 of 3 w1, 2 of 3 w2)"),
        (4, "(2 of 3 w0, 2 of 3 w1, 2 of 3 w2, and of 1 more tensors)"),
        (6, "(2 of 3 w0, 2 of 3 w1, 2 of 3 w2, and of 3 more tensors)"),
    ],
)
def test_no_more_than_three_tensors_are_named_and_the_others_counted(tensors, named):
    with pytest.raises(RuntimeError, match="resume from a checkpoint before it") as raised:
        check_weights(5, {f"w{number}": BAD for number in range(tensors)})
    assert f"not finite {named}, and are not published" in str(raised.value)


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
