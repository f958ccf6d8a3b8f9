import copy

import pytest
import torch

from rlinf_async.core.past_weights import PastWeights


def model_and_past(keep=2):
    model = torch.nn.Linear(3, 2)
    return model, PastWeights(lambda: list(model.parameters()), keep=keep)


def shift(model, by):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by


def test_inside_the_block_the_policy_is_the_one_of_that_version():
    model, past = model_and_past()
    first = copy.deepcopy(model)
    past.remember(4)
    shift(model, 1.0)
    inputs = torch.randn(5, 3)
    with past.at(4):
        assert torch.equal(model(inputs), first(inputs))


def test_after_the_block_the_policy_is_the_present_one_again_even_after_an_error():
    model, past = model_and_past()
    past.remember(0)
    shift(model, 1.0)
    present = copy.deepcopy(model.state_dict())
    with pytest.raises(ArithmeticError), past.at(0):
        raise ArithmeticError
    assert all(torch.equal(present[name], tensor) for name, tensor in model.state_dict().items())


def test_what_is_remembered_does_not_change_with_the_policy():
    model, past = model_and_past()
    past.remember(0)
    before = model.weight.detach().clone()
    shift(model, 1.0)
    shift(model, 1.0)
    with past.at(0):
        assert torch.equal(model.weight, before)


def test_only_the_last_versions_are_kept():
    _, past = model_and_past(keep=2)
    for version in (3, 4, 5):
        past.remember(version)
    assert [version in past for version in (3, 4, 5)] == [False, True, True]
    with pytest.raises(KeyError):
        past.at(3).__enter__()


def test_keeping_nothing_is_refused():
    with pytest.raises(ValueError, match="keep=0 must be at least 1"):
        model_and_past(keep=0)


def test_one_version_may_be_kept():
    _, past = model_and_past(keep=1)
    past.remember(3)
    past.remember(4)
    assert [version in past for version in (3, 4)] == [False, True]
