import gc

import pytest
import torch

from rlinf_async.core import held_inputs
from rlinf_async.core.held_inputs import HeldInputs, LentMemory
from rlinf_async.core.tensors import concatenate, map_tensors

TYPES = (torch.uint8, torch.bfloat16, torch.int64, torch.bool)


def inputs(seed, steps, width):
    """A tree of all types, [steps, width, ...], with a picture among them."""
    draw = torch.Generator().manual_seed(seed)
    numbers = {
        str(dtype): torch.randint(0, 2, (steps, width, 3), generator=draw).to(dtype) for dtype in TYPES
    }
    picture = torch.randint(0, 256, (steps, width, 5, 4, 3), generator=draw, dtype=torch.uint8)
    one_each = torch.rand(steps, width, generator=draw)
    empty = torch.zeros(steps, width, 0)
    return {**numbers, "camera": {"picture": picture, "depth": None}, "one each": one_each, "empty": empty}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, dict):
            same(found[name], value)
        elif value is None:
            assert found[name] is None
        else:
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)


@pytest.mark.parametrize("seed", range(20))
def test_a_pass_over_numbers_has_the_samples_that_joined_and_shuffled_inputs_would_have(seed):
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 6, (7,), generator=draw).tolist()
    steps, *widths = sizes
    trees = [inputs(seed + index, steps, width) for index, width in enumerate(widths)]
    order = torch.randperm(steps * sum(widths), generator=draw)
    expected = map_tensors(lambda tensor: tensor.flatten(0, 1)[order], concatenate(trees, dim=1))
    held = HeldInputs()
    numbers = torch.cat([held.hold(tree) for tree in trees], dim=1).flatten(0, 1)[order]
    parts = [held.copied(part) for part in numbers.split(4)]
    same(concatenate(parts), expected)


def test_what_is_held_is_not_copied_before_a_pass_and_is_let_go_with_its_batch():
    held, tree = HeldInputs(), {"x": torch.zeros(2, 3, 4)}
    numbers = held.hold(tree).flatten()
    tree["x"][1, 2] = 7.0
    assert held.copied(numbers)["x"][5].tolist() == [7.0] * 4
    pointer = tree["x"].untyped_storage()._weak_ref()
    del tree
    held.clear()
    gc.collect()
    assert torch.UntypedStorage._expired(pointer)


def test_rows_of_another_rank_are_let_go_one_by_one():
    held = HeldInputs()
    first = held.hold({"x": torch.tensor([[0, 1], [2, 3]])}).flatten()
    given = [{"forward_inputs": {"x": torch.tensor(values)}} for values in ([5, 6], [7, 8])]
    numbers = [held.with_numbers(samples)["forward_inputs"] for samples in given]
    pointer = given[0]["forward_inputs"]["x"].untyped_storage()._weak_ref()
    del given
    held.let_go(numbers[0])
    gc.collect()
    assert torch.UntypedStorage._expired(pointer)
    last = held.hold({"x": torch.tensor([[9]])}).flatten()
    assert held.copied(torch.cat([last, first, numbers[1]]))["x"].tolist() == [9, 0, 1, 2, 3, 7, 8]


def test_samples_come_back_as_they_were_whether_their_inputs_are_numbers_or_not():
    held = HeldInputs()
    samples = {"forward_inputs": {"x": torch.arange(6).reshape(3, 2)}, "rewards": torch.ones(3)}
    same(held.with_inputs(held.with_numbers(samples)), samples)
    same(held.with_inputs(samples), samples)
    same(held.with_inputs(held.with_numbers({"rewards": torch.ones(3)})), {"rewards": torch.ones(3)})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"x": torch.zeros(1, 1, 3)}, r"'x'\] is \[2\] float32 in one rollout and \[3\] float32 in another"),
        ({"x": torch.zeros(1, 1, 2).int()}, r"\[2\] int32 in another"),
        ({"x": {"y": torch.zeros(1, 1)}}, "a dictionary in another"),
        ({"x": torch.zeros(1, 1, 2), "z": torch.zeros(1, 1)}, r"'z'\] is missing in one rollout"),
    ],
)
def test_inputs_of_another_kind_than_those_before_are_refused_by_name(wrong, said):
    held = HeldInputs()
    held.hold(wrong)
    held.clear()  # another batch may have others, as with RLinf and veRL themselves
    held.hold({"x": torch.zeros(2, 2, 2)})
    with pytest.raises(ValueError, match=said):
        held.hold(wrong)


def test_memory_is_used_again_once_the_tensors_in_it_are_gone():
    memory = LentMemory()
    first = memory.empty((4, 100), torch.float32)
    place, part = first.data_ptr(), first[1:2]
    del first
    # A view of it is still there.
    second = memory.empty((4, 100), torch.float32)
    assert second.data_ptr() != place
    del part
    third = memory.empty((10, 10), torch.uint8)
    assert third.data_ptr() == place
    third.fill_(3)
    assert memory.empty((2, 0), torch.int64).shape == (2, 0)


def test_a_free_block_that_is_too_small_gives_way_to_a_larger_one():
    memory = LentMemory()
    for size in (10, 1_000, 20, 100_000, 500):
        memory.empty((size,), torch.uint8).fill_(1)
    assert [len(block) for block, _ in memory._blocks] == [100_000]


def test_memory_for_an_accelerator_is_page_locked(monkeypatch):
    """A stand-in for torch, as a machine without an accelerator locks no pages.

    Each copy is torch's own to give again: torch knows of copies to the accelerator that are not done yet.
    """
    locked = []

    def empty(*shape, pin_memory=False, dtype):
        tensor = torch.zeros(*shape, dtype=dtype)
        locked.append(tensor.data_ptr() if pin_memory else None)
        return tensor

    monkeypatch.setattr(held_inputs.torch, "empty", empty)
    for pinned in (False, True):
        locked.clear()
        held = HeldInputs(pinned=pinned)
        numbers = held.hold({"x": torch.arange(4).reshape(2, 2)}).flatten()
        found = [held.copied(numbers)["x"] for _ in range(2)]
        assert [each.tolist() for each in found] == [[0, 1, 2, 3]] * 2
        assert locked == ([each.data_ptr() for each in found] if pinned else [None, None])
