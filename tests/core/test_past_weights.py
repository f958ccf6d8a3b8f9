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


def weights_at(past, model, version, *, present):
    """The weights that a visitor of `version` sees; the present ones are remembered as `present`."""
    seen = []
    past.visit([version], lambda _: seen.append(model.weight.detach().clone()), present=present)
    return seen[0]


def test_a_visitor_sees_the_policy_of_that_version_to_the_bit():
    model, past = model_and_past()
    first = copy.deepcopy(model)
    past.remember(4)
    shift(model, 1.0, past)
    inputs, outputs = torch.randn(5, 3), []
    past.visit([4], lambda _: outputs.append(model(inputs)), present=5)
    assert torch.equal(outputs[0], first(inputs))


def test_an_error_while_the_past_is_written_leaves_the_present():
    model, past = model_and_past(keep=3)
    past.remember(0)
    shift(model, 1.0, past)
    present = copy.deepcopy(model.state_dict())
    past._copies[0][1] = torch.zeros(7)  # of a shape that no parameter has
    with pytest.raises(RuntimeError, match="size"):
        past.visit([0], lambda _: pytest.fail("not reached"), present=1)
    assert all(torch.equal(present[name], tensor) for name, tensor in model.state_dict().items())


def test_only_the_last_versions_are_kept():
    _, past = model_and_past(keep=2)
    for version in (3, 4, 5):
        past.remember(version)
    assert [version in past for version in (3, 4, 5)] == [False, True, True]


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
    versions = [version for version in range(4) if version in past]
    past.visit(versions, lambda version: found.update({version: model.weight.detach().clone()}), present=4)
    assert all(torch.equal(found[version], weights[version]) for version in versions)


def test_a_visit_that_fails_leaves_the_present():
    model, past = model_and_past(keep=2)
    weights = advanced(past, model, [0, 1])

    def fail(version):
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        past.visit([0, 1], fail, present=2)
    assert torch.equal(model.weight, weights[2])
    assert torch.equal(weights_at(past, model, 1, present=2), weights[1])


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
    assert torch.equal(weights_at(past, model, 3, present=4), newest)


def test_before_anything_is_remembered_the_present_is_no_version():
    assert model_and_past()[1].present is None
