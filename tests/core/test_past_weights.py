import copy

import pytest
import torch

from rlinf_async.core.past_weights import PastWeights


def model_and_past(keep=2):
    model = torch.nn.Linear(3, 2)
    return model, PastWeights(lambda: list(model.parameters()), keep=keep)


def shift(model, by, past=None):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by
    if past is not None:
        past.changed()


def test_inside_the_block_the_policy_is_the_one_of_that_version():
    model, past = model_and_past()
    first = copy.deepcopy(model)
    past.remember(4)
    shift(model, 1.0, past)
    inputs = torch.randn(5, 3)
    with past.at(4):
        assert torch.equal(model(inputs), first(inputs))


def test_after_the_block_the_policy_is_the_present_one_again_even_after_an_error():
    model, past = model_and_past()
    past.remember(0)
    shift(model, 1.0, past)
    present = copy.deepcopy(model.state_dict())
    with pytest.raises(ArithmeticError), past.at(0):
        raise ArithmeticError
    assert all(torch.equal(present[name], tensor) for name, tensor in model.state_dict().items())


def test_what_is_remembered_does_not_change_with_the_policy():
    model, past = model_and_past()
    past.remember(0)
    before = model.weight.detach().clone()
    shift(model, 1.0, past)
    past.remember(1)
    shift(model, 1.0, past)
    with past.at(0):
        assert torch.equal(model.weight, before)
    with past.at(1):
        assert torch.allclose(model.weight, before + 1.0, atol=1e-6)
    assert torch.allclose(model.weight, before + 2.0, atol=1e-6)


def test_a_present_that_is_remembered_comes_back_from_there_and_one_that_is_not_survives():
    model, past = model_and_past(keep=3)
    past.remember(0)
    for version in (1, 2):
        shift(model, 1.0, past)
        past.remember(version)
        present = model.weight.detach().clone()
        with past.at(0):
            assert torch.allclose(model.weight, present - version, atol=1e-6)
        assert torch.equal(model.weight, present)
    shift(model, 1.0, past)
    with past.at(0):
        assert torch.allclose(model.weight, present - 2.0, atol=1e-6)
    assert torch.equal(model.weight, present + 1.0)


def test_the_policy_at_the_version_that_it_has_is_not_touched():
    model, past = model_and_past()
    past.remember(0)
    written = model.weight._version
    with past.at(0):
        assert model.weight._version == written
    past.changed()
    with past.at(0):
        assert model.weight._version > written


def test_memory_is_allocated_for_as_many_versions_as_are_kept_and_one_that_is_away():
    model, past = model_and_past(keep=2)
    places = set()
    for version in range(8):
        shift(model, 1.0, past)
        past.remember(version)
        shift(model, 1.0, past)
        with past.at(version):
            places |= {copy[0].data_ptr() for copy in (*past._copies.values(), *past._spare)}
    assert len(places) <= 3


def test_an_error_while_the_past_is_written_leaves_the_present():
    model, past = model_and_past()
    past.remember(0)
    shift(model, 1.0, past)
    present = copy.deepcopy(model.state_dict())
    past._copies[0][1] = torch.zeros(7)  # of a shape that no parameter has
    with pytest.raises(RuntimeError, match="size"), past.at(0):
        raise AssertionError("not reached")
    assert all(torch.equal(present[name], tensor) for name, tensor in model.state_dict().items())


def test_only_the_last_versions_are_kept():
    _, past = model_and_past(keep=2)
    for version in (3, 4, 5):
        past.remember(version)
    assert [version in past for version in (3, 4, 5)] == [False, True, True]
    with pytest.raises(KeyError):
        past.at(3).__enter__()


def advanced(past, model, versions):
    """Weights by version, each remembered when it had come; and the present ones, one further."""
    seen = {}
    for version in versions:
        past.remember(version)
        seen[version] = model.weight.detach().clone()
        shift(model, 1.0, past)
    return seen | {versions[-1] + 1: model.weight.detach().clone()}


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
@pytest.mark.parametrize("wanted", [(), (2,), (1, 2), (0, 2), (0, 1, 2), (9,)])
def test_a_visit_shows_each_version_that_is_remembered_and_keeps_the_present_one(keep, wanted):
    model, past = model_and_past(keep)
    weights, found = advanced(past, model, [0, 1, 2]), {}
    kept = [version for version in (0, 1, 2) if version in past]
    past.visit(wanted, lambda version: found.update({version: model.weight.detach().clone()}), present=3)
    assert sorted(found) == [version for version in wanted if version in kept]
    assert all(torch.equal(found[version], weights[version]) for version in found)
    assert torch.equal(model.weight, weights[3])
    assert past.present == 3
    assert [version for version in range(4) if version in past] == [*kept, 3][-keep:]
    shift(model, 1.0, past)
    for version in range(4):
        if version in past:
            with past.at(version):
                assert torch.equal(model.weight, weights[version])


def test_a_visit_that_fails_leaves_the_present():
    model, past = model_and_past(keep=2)
    weights = advanced(past, model, [0, 1])

    def fail(version):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        past.visit([0, 1], fail, present=2)
    assert torch.equal(model.weight, weights[2])
    with past.at(1):
        assert torch.equal(model.weight, weights[1])


def test_visits_need_no_memory_beside_that_of_the_versions_that_are_kept():
    model, past = model_and_past(keep=2)
    past.remember(0)
    places = set()
    for version in range(1, 6):
        shift(model, 1.0, past)
        past.visit([version - 2, version - 1], lambda _: None, present=version)
        places |= {copy[0].data_ptr() for copy in (*past._copies.values(), *past._spare)}
    assert len(places) == 2


def test_keeping_nothing_is_refused():
    with pytest.raises(ValueError, match="keep=0 must be at least 1"):
        model_and_past(keep=0)


def test_one_version_may_be_kept():
    _, past = model_and_past(keep=1)
    past.remember(3)
    past.remember(4)
    assert [version in past for version in (3, 4)] == [False, True]


def test_what_is_forgotten_is_not_remembered_and_its_memory_is_used_again():
    model, past = model_and_past()
    for version in (3, 4):
        past.remember(version)
        shift(model, 1.0, past)
    copies = {id(copy) for copy in past._copies.values()}
    past.forget()
    assert (3 in past, 4 in past, past.present) == (False, False, None)
    with pytest.raises(KeyError), past.at(4):
        pass
    past.remember(5)
    assert {id(copy) for copy in past._copies.values()} < copies


def test_a_version_that_is_remembered_again_is_the_newer_one_and_its_memory_is_used_again():
    model, past = model_and_past(keep=1)
    past.remember(3)
    for _ in range(2):
        shift(model, 1.0, past)
        past.remember(3)
    newest = model.weight.detach().clone()
    shift(model, 1.0, past)
    with past.at(3):
        assert torch.equal(model.weight, newest)


def test_before_anything_is_remembered_the_present_is_no_version():
    assert model_and_past()[1].present is None
