"""Observations: copied, joined to batches, and kept apart where they are not alike."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlinf_async.hosts.observations import alike, copied, each_alike, merge

LEAVES = {
    "tensor": lambda size, value: torch.full((size, 2), float(value)),
    "array": lambda size, value: np.full((size, 2), value),
    "list": lambda size, value: [f"{value}"] * size,
    "tuple": lambda size, value: (value,) * size,
    "nothing": lambda size, value: None,
    "text": lambda size, value: "for all",
}


def shown(kinds, size, value):
    """An observation whose fields, and fields of whose field, are of these kinds."""
    fields = {f"{number}": LEAVES[kind](size, value) for number, kind in enumerate(kinds)}
    return {**fields, "nested": dict(fields)}


@given(
    st.lists(st.sampled_from(sorted(LEAVES)), min_size=1, max_size=6), st.lists(st.integers(1, 3), min_size=1)
)
def test_a_batch_has_the_items_of_its_shards_in_order(kinds, sizes):
    merged = merge([shown(kinds, size, number) for number, size in enumerate(sizes)])
    owners = [number for number, size in enumerate(sizes) for _ in range(size)]
    for place in (merged, merged["nested"]):
        for number, kind in enumerate(kinds):
            field = place[f"{number}"]
            if kind == "nothing":
                assert field is None
            elif kind == "text":
                assert field == "for all"
            else:
                firsts = [item if isinstance(item, int | str) else item[0] for item in field]
                assert [int(first) for first in firsts] == owners


PAIRS = {
    "missing": ({"a": torch.zeros(1)}, {"a": torch.zeros(1), "y": torch.zeros(1)}, "'y'"),
    "missing within": (
        {"arm": {"a": torch.zeros(1)}},
        {"arm": {"a": torch.zeros(1), "y": torch.zeros(1)}},
        "'arm.y'",
    ),
    "nothing": ({"a": torch.zeros(1)}, {"a": None}, "'a'"),
    "another kind": ({"a": torch.zeros(1)}, {"a": np.zeros(1)}, "'a'"),
    "a mapping": ({"a": {"b": torch.zeros(1)}}, {"a": torch.zeros(1)}, "'a'"),
    "another text": ({"a": "go"}, {"a": "stay"}, "'a'"),
    "another height": ({"a": 1.0}, {"a": 2.0}, "'a' is a float that differs between"),
    "another number": ({"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}, "'a'"),
}


@pytest.mark.parametrize("what", PAIRS)
def test_what_cannot_be_joined_is_an_error_in_either_order_that_names_the_field(what):
    one, other, named = PAIRS[what]
    for pair in ((one, other), (other, one)):
        with pytest.raises(ValueError, match="shards") as raised:
            merge(pair)
        assert named in str(raised.value)
        assert alike(pair) == [[0], [1]]


def test_a_field_that_some_do_not_show_says_who_does_not():
    shards = [{"a": torch.zeros(1), "y": torch.zeros(1)}, {"a": torch.zeros(1)}, {"a": torch.zeros(1)}]
    with pytest.raises(ValueError, match=r"'y' is shown by some .*: it is missing in number 1, 2 of 3"):
        merge(shards)


def test_those_that_are_alike_are_asked_together_and_answered_in_order():
    wide, narrow = torch.zeros(2, 3), torch.zeros(1, 2)
    asked = []

    def answer(numbers):
        asked.append(numbers)
        return [f"{number} of {len(numbers)}" for number in numbers]

    shards = [{"a": wide}, {"a": narrow}, {"a": wide, "b": None}, {"a": wide[:1]}, {"a": narrow}]
    assert each_alike(shards, answer) == ["0 of 2", "1 of 2", "2 of 1", "3 of 2", "4 of 2"]
    assert asked == [[0, 3], [1, 4], [2]]
    for numbers in asked:
        merge([shards[number] for number in numbers])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(1, 2), torch.zeros(1, 2).double()),
        (torch.zeros(1, 2), torch.zeros(1, 3)),
        (np.zeros((1, 2)), np.zeros((1, 2), dtype=np.uint8)),
        (["a"], ("a",)),
    ],
)
def test_other_types_and_shapes_are_not_alike(one, other):
    assert alike([{"a": one}, {"a": other}, {"a": one}]) == [[0, 2], [1]]


def test_what_is_kept_does_not_change_with_what_was_shown():
    array, tensor = np.ones(2), torch.ones(2)
    own = copied(
        {"a": [array, {"b": tensor}], "c": (bytearray(b"x"),), "d": np.array([array, None], dtype=object)}
    )
    array[:], tensor[:] = 9, 9
    assert own["a"][0].tolist() == own["a"][1]["b"].tolist() == [1.0, 1.0]
    assert own["d"][0].tolist() == [1.0, 1.0]
    assert own["d"][1] is None
    assert own["c"] == (bytearray(b"x"),)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", ">i4", "float16", ">f8", "longdouble", "complex64"]
)
def test_arrays_of_all_kinds_of_numbers_are_kept_as_tensors(dtype):
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    own = copied(array.T)
    assert isinstance(own, torch.Tensor)
    assert own.is_contiguous()
    assert own.tolist() == array.T.tolist()


def test_what_needs_gradients_is_kept_without():
    assert not copied(torch.ones(2, requires_grad=True) * 2).requires_grad
