import pytest
import torch

from rlinf_async.config import SurviveConfig
from rlinf_async.core.failures import ShardFailure
from rlinf_async.loops.finite import check_finite, check_weights

GOOD = torch.ones(2, 3)
BAD = torch.tensor([1.0, float("nan"), float("inf")])


def check(*, seen=GOOD, thought=GOOD, **survive):
    check_finite(
        SurviveConfig(**survive), observed={"rewards": seen}, scores={"logprobs": thought}, version=7
    )


def test_finite_numbers_pass_and_so_does_what_is_no_float_tensor():
    check()
    check(seen=torch.tensor([1, 2]), thought=None)
    check(seen=torch.full((2,), 3e38))  # whose sum overflows


def test_environments_are_to_blame_for_what_they_have_shown():
    with pytest.raises(ShardFailure, match="2 of 3 rewards") as raised:
        check(seen=BAD, thought=BAD)
    assert (raised.value.what, raised.value.reason) == ("not finite", "not finite")


def test_a_run_may_be_told_to_stop_at_that():
    with pytest.raises(RuntimeError, match=r"2 of 3 rewards .*non_finite=stop") as raised:
        check(seen=BAD, non_finite="stop")
    assert not isinstance(raised.value, ShardFailure)


@pytest.mark.parametrize("non_finite", ["refuse", "stop"])
def test_a_policy_that_makes_them_of_finite_observations_ends_the_run(non_finite):
    with pytest.raises(RuntimeError, match=r"policy of version 7 .*2 of 3 logprobs") as raised:
        check(thought=BAD, non_finite=non_finite)
    assert not isinstance(raised.value, ShardFailure)


def test_nobody_looks_where_nobody_wants_to_know():
    check(seen=BAD, thought=BAD, non_finite="off")


def test_weights_that_are_not_finite_are_named_before_they_are_published():
    good = {"layer.weight": GOOD, "steps": torch.tensor(3)}
    check_weights(5, good)
    with pytest.raises(RuntimeError, match=r"weights of version 5 are not finite \(2 of 3 layer.bias\)"):
        check_weights(5, {**good, "layer.bias": BAD.bfloat16()})
    with pytest.raises(RuntimeError, match="and of 2 more tensors"):
        check_weights(5, {str(number): BAD for number in range(5)})
