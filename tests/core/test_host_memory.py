import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core import host_memory
from rlinf_async.core.host_memory import copy_all, exchange_all, host_tensors

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


@settings(deadline=None, max_examples=60)
@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=12),
    block=st.sampled_from([1, 64, 500, 2**20]),
    seed=st.integers(0, 99),
)
def test_every_tensor_has_a_place_of_its_own_in_blocks_of_bounded_size(shapes, block, seed):
    draw = torch.Generator().manual_seed(seed)
    sources = [
        torch.randint(0, 2, shape, generator=draw).to(TYPES[index % len(TYPES)])
        for index, shape in enumerate(shapes)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_memory, "BLOCK_BYTES", block)
        places = host_tensors((tensor.shape, tensor.dtype) for tensor in sources)
    copy_all(places, sources)
    assert all(map(torch.equal, places, sources))
    held = {place.untyped_storage().data_ptr(): place.untyped_storage().nbytes() for place in places}
    largest = max((-(-tensor.nbytes // 16) * 16 for tensor in sources), default=0)
    assert all(size <= max(block, largest) for size in held.values())


def test_types_are_converted():
    (place,) = host_tensors([(torch.Size([2]), torch.bfloat16)])
    copy_all([place], [torch.tensor([1.001, 2.0])])
    assert torch.equal(place, torch.tensor([1.001, 2.0]).bfloat16())


def test_blocks_are_filled_to_the_last_byte_and_no_larger_than_what_they_hold(monkeypatch):
    monkeypatch.setattr(host_memory, "BLOCK_BYTES", 64)
    sizes = [32, 32, 16, 80, 16]  # two fill a block; one is larger than any
    places = host_tensors((torch.Size([size]), torch.uint8) for size in sizes)
    blocks = [place.untyped_storage() for place in places]
    assert [block.nbytes() for block in blocks] == [64, 64, 16, 80, 16]
    assert blocks[0].data_ptr() == blocks[1].data_ptr()
    assert host_tensors([]) == []


def test_as_many_are_copied_as_there_are():
    with pytest.raises(ValueError, match="longer"):
        copy_all([torch.zeros(1)], [torch.zeros(1)] * 2)


def test_values_change_places():
    a, b = [torch.tensor([1.0, 2.0]), torch.tensor(5)], [torch.tensor([3.0, 4.0]), torch.tensor(6)]
    exchange_all(a, b)
    assert [one.tolist() for one in a] == [[3.0, 4.0], 6]
    assert [one.tolist() for one in b] == [[1.0, 2.0], 5]
    with pytest.raises(ValueError, match="longer"):
        exchange_all(a, [*b, torch.zeros(1)])
