"""A policy that fails for what environments have shown it."""

import pytest
import torch

from rlinf_async.core.failures import ForeignError, frames_of
from rlinf_async.hosts.kit.answers import Answering


class Linear(Answering):
    _version_held = 0

    def __init__(self, fault=None):
        self._layer, self._fault = torch.nn.Linear(2, 2), fault

    def decide(self, observations, size, mode):
        if self._fault:
            raise self._fault
        return self._layer(torch.cat([each["states"] for each in observations])), {}


def requests(*types):
    return [{"obs": {"states": torch.zeros(1, 2, dtype=each), "goal": torch.zeros(1)}} for each in types]


def test_observations_in_double_precision_are_named_where_the_policy_fails_by_their_type():
    with pytest.raises(ForeignError, match=r"Double and Float \(.* have given states as float64\)") as raised:
        Linear().answer(requests(torch.float64, torch.float64), [1, 1], "eval")
    assert str(raised.value).startswith("RuntimeError: mat1 and mat2")
    assert "test_answers.py" in frames_of(raised.value)


@pytest.mark.parametrize("fault", [RuntimeError("out of luck"), ValueError("dtype")])
def test_another_failure_is_left_as_it_is(fault):
    with pytest.raises(type(fault)) as raised:
        Linear(fault).answer(requests(torch.float64), [1], "eval")
    assert raised.value is fault


def test_a_type_that_the_environments_have_not_given_is_none_of_their_faults():
    with pytest.raises(RuntimeError, match="same dtype") as raised:
        Linear().answer(requests(torch.float16), [1], "eval")
    assert "environments" not in str(raised.value)
