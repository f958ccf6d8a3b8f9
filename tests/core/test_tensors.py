import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.core.tensors import (
    concatenate,
    in_parts,
    map_tensors,
    size_of,
    slice_samples,
)


def tree(start, stop):
    numbers = torch.arange(start, stop)
    return {"a": numbers, "inner": {"b": 10 * numbers[:, None], "none": None}, "none": None}


def flat(value):
    return {"a": value["a"].tolist(), "b": value["inner"]["b"].flatten().tolist()}


def test_a_function_reaches_every_tensor_and_leaves_none_alone():
    doubled = map_tensors(lambda tensor: 2 * tensor, tree(0, 3))
    assert flat(doubled) == {"a": [0, 2, 4], "b": [0, 20, 40]}
    assert doubled["none"] is None
    assert doubled["inner"]["none"] is None


def test_slices_put_side_by_side_again_are_the_whole():
    whole = tree(0, 7)
    parts = [slice_samples(whole, start, stop) for start, stop in ((0, 2), (2, 3), (3, 7))]
    assert flat(concatenate(parts)) == flat(whole)
    assert concatenate(parts)["none"] is None


def test_slices_are_views():
    whole = tree(0, 4)
    slice_samples(whole, 1, 3)["a"].fill_(-1)
    assert whole["a"].tolist() == [0, -1, -1, 3]


def test_trees_are_joined_and_cut_along_another_dimension():
    left, right = {"x": torch.zeros(2, 3)}, {"x": torch.ones(2, 1)}
    joined = concatenate([left, right], dim=1)
    assert joined["x"].tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
    assert size_of(joined, dim=1) == 4
    assert slice_samples(joined, 3, 4, dim=1)["x"].tolist() == [[1], [1]]


def test_trees_are_stacked_in_a_new_dimension_and_must_have_the_same_keys():
    stacked = concatenate([tree(0, 2), tree(2, 4)], join=torch.stack)
    assert stacked["a"].tolist() == [[0, 1], [2, 3]]
    assert stacked["inner"]["b"].tolist() == [[[0], [10]], [[20], [30]]]
    assert stacked["none"] is None
    with pytest.raises(ValueError, match="'a' must be a tensor in all of 2 trees"):
        concatenate([tree(0, 2), {"none": None}], join=torch.stack)


def test_the_size_of_a_tree_is_that_of_any_of_its_tensors():
    assert size_of({"none": None, "empty": {}, "inner": {"x": torch.zeros(5, 2)}}) == 5


def test_a_branch_without_tensors_does_not_hide_the_next_one():
    assert size_of({"inner": {"none": None}, "x": torch.zeros(3)}) == 3


def test_a_tree_without_tensors_has_no_size():
    with pytest.raises(ValueError, match="no tensor"):
        size_of({"none": None, "inner": {"none": None}})


@pytest.mark.parametrize(
    "trees",
    [
        [{"x": torch.zeros(2)}, {"x": None}],
        [{"x": None}, {"x": torch.zeros(2)}],
        [{"x": torch.zeros(2)}, {}],
        [{"x": torch.zeros(2)}, {"x": torch.zeros(2), "y": torch.zeros(2)}],
        [{"x": {"y": torch.zeros(2)}}, {"x": torch.zeros(2)}],
    ],
)
def test_trees_of_different_keys_are_not_joined_silently(trees):
    with pytest.raises((ValueError, KeyError)):
        concatenate(trees)


def test_branches_are_joined_along_the_dimension_that_was_asked_for():
    one = {"a": {"b": torch.zeros(2, 3)}, "c": torch.zeros(2, 1)}
    joined = concatenate([one, one], dim=1)
    assert (joined["a"]["b"].shape, joined["c"].shape) == ((2, 6), (2, 2))


def test_a_name_that_stands_for_different_things_is_named():
    with pytest.raises(ValueError, match="'a' must be a tensor in all of 2 trees, or a dictionary in all"):
        concatenate([{"a": torch.zeros(1)}, {"a": {"b": torch.zeros(1)}}])


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 7))
def test_parts_hold_all_samples_of_all_trees_in_order(sizes, most):
    numbers = list(torch.arange(sum(sizes)).split(sizes)) if sizes else []
    parts = list(in_parts(most, *({"x": part, "in": {"y": -part}} for part in numbers)))
    assert [size_of(part) for part in parts[:-1]] == [most] * (len(parts) - 1)
    assert all(0 < size_of(part) <= most for part in parts)
    assert [number for part in parts for number in part["x"].tolist()] == list(range(sum(sizes)))
    assert all(torch.equal(part["in"]["y"], -part["x"]) for part in parts)


def test_parts_of_one_tree_are_views():
    tree = {"x": torch.zeros(5)}
    for part in in_parts(2, tree):
        part["x"] += 1
    assert tree["x"].tolist() == [1] * 5
