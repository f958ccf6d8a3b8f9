"""Large observations between an env worker and an inference rank, on one machine and on two."""

import asyncio
import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlinf_async.core.failures import PeerError
from rlinf_async.core.row_stack import RowStack
from rlinf_async.wire import connection, memory, shown_memory
from rlinf_async.wire.listening import Listening
from rlinf_async.wire.memory import Adjoined, MemoryPool, map_pages
from rlinf_async.wire.payloads import (
    INLINE_BYTES,
    map_ahead,
    pack,
    read_each_sealed,
    read_sealed,
    seal,
    sealed,
    unpack,
    unseal,
)
from rlinf_async.wire.shown_memory import Reader, ShownMemory
from tests.listening import listening
from tests.loops.virtual import now, settle


async def test_it_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(ShownMemory, "_show", lambda *message: None)
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    unsent = pytest.raises(PeerError, match="the memory of another process has not answered within 60 s")
    with shown.holding(np.arange(9)) as ([_, *numbers], address), unsent:
        await reader.read(["another machine", *numbers], address)
    assert now() == shown_memory.READ_TIMEOUT_S


@pytest.fixture
def two_machines(monkeypatch):
    """Whoever writes or sends a value is on one machine; reading is on another if that is in the list."""
    machines = []
    monkeypatch.setattr(connection, "has_other_nodes", lambda: True)
    monkeypatch.setattr(memory, "machine", lambda: machines.pop(0) if machines else "one")
    return machines


@pytest.mark.real_time
async def test_on_one_machine_it_is_mapped_and_no_port_is_opened():
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    before = set(listening(os.getpid()))
    with shown.holding(np.arange(9)) as (place, address):
        assert (await reader.read(place, address)).tolist() == list(range(9))
    assert reader._owners.by_address == {}
    assert set(listening(os.getpid())) == before


@pytest.mark.real_time
async def test_on_one_machine_it_is_sent_to_whom_may_not_map_it(monkeypatch):
    read, tries = shown_memory.read, [True, False]

    def refused(place):
        if tries.pop(0):
            raise PeerError("may not look into it")
        return read(place)

    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    monkeypatch.setattr(shown_memory, "read", refused)
    with shown.holding(np.arange(9)) as (place, address):
        assert (await reader.read(place, address)).tolist() == list(range(9))
    assert len(reader._owners.by_address) == 1


@pytest.mark.real_time
async def test_another_machine_is_sent_it_by_the_process_that_has_it(two_machines):
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    for number in range(3):
        with shown.holding({"image": np.full(300_000, number)}) as (place, address):
            two_machines.append("another")
            assert (await reader.read(place, address))["image"].tolist() == [number] * 300_000
    assert len(reader._owners.by_address) == 1


@pytest.mark.real_time
async def test_what_is_too_long_to_be_sent_is_an_error_and_the_next_value_is_read(two_machines, monkeypatch):
    monkeypatch.setattr(connection, "LONGEST_MESSAGE_BYTES", 2000)
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    with shown.holding(np.zeros(1000)) as (place, address):
        two_machines.append("another")
        with pytest.raises(PeerError, match=r"a message of \d+ bytes is longer than 2000"):
            await reader.read(place, address)
    with shown.holding(np.arange(9)) as (place, address):
        two_machines.append("another")
        assert (await reader.read(place, address)).tolist() == list(range(9))


@pytest.mark.real_time
async def test_what_is_not_there_any_more_is_an_error_on_another_machine_too(two_machines):
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    with pytest.raises(KeyError), shown.holding(np.zeros(9)) as (place, address):
        raise KeyError  # the asker gives up, and its file is closed
    two_machines.append("another")
    with pytest.raises(PeerError, match=r"cannot read the memory of process|has released"):
        await reader.read(place, address)


@pytest.mark.real_time
async def test_a_process_that_has_died_is_an_error_on_another_machine_too(two_machines):
    shown, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    with shown.holding(np.zeros(9)) as (place, address):
        two_machines.append("another")
        await reader.read(place, address)
        (peer,) = reader._owners.by_address.values()
        peer._connection.abort()
        for listening in shown._listener._sockets.values():
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        await settle()
        for reads in (reader, Reader()):  # one that had connected, and one that had not
            two_machines.append("another")
            with pytest.raises(PeerError, match="the memory of another process"):
                await reads.read(place, address)


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]


def made(dtype, shape):
    raw = torch.arange(int(np.prod(shape, dtype=int))).reshape(shape) % 5
    return raw.to(dtype)


def same(left, right):
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and left.contiguous().numpy(force=True).tobytes() == right.contiguous().numpy(force=True).tobytes()
        if left.dtype not in (torch.bfloat16, torch.float8_e4m3fn)
        else left.dtype == right.dtype and torch.equal(left.float(), right.float())
    )


def sent(value):
    """As Ray does it: protocol 5, the buffers beside the message and read-only. Returns how to receive it."""
    buffers = []
    message = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    shared = [bytes(buffer.raw()) for buffer in buffers]
    return lambda: pickle.loads(message, buffers=shared)


def through_pickle(value):
    return sent(value)()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_writing_to_a_tensor_leaves_the_read_only_memory_it_arrived_in_alone(dtype):
    tensor = made(dtype, (4,))
    receive = sent(pack(tensor))
    unpack(receive()).zero_()
    assert same(unpack(receive()), tensor)


def test_a_view_is_sent_without_what_it_is_a_view_of():
    packed = pack(torch.zeros(1000, 8)[:, 0])
    assert packed.nbytes == 1000 * 4
    assert packed.flags.c_contiguous


def test_gradients_stay_at_home():
    assert not unpack(pack(torch.ones(2, requires_grad=True))).requires_grad


LEAVES = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=5),
    st.booleans(),
    st.builds(made, st.sampled_from(DTYPES), st.sampled_from([(), (0,), (2,), (2, 3)])),
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
    ),
    max_leaves=12,
)


def equal(left, right):
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and same(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(equal(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return (
            type(left) is type(right)
            and len(left) == len(right)
            and all(equal(one, other) for one, other in zip(left, right, strict=True))
        )
    return type(left) is type(right) and left == right


@settings(deadline=None, max_examples=80)
@given(NESTED)
def test_whatever_is_nested_arrives_as_it_was(value):
    assert equal(unpack(through_pickle(pack(value))), value)


@settings(deadline=None, max_examples=40)
@given(NESTED)
def test_no_tensor_travels_as_a_tensor(value):
    def leaves(packed):
        if isinstance(packed, dict):
            return [leaf for item in packed.values() for leaf in leaves(item)]
        if isinstance(packed, list | tuple):
            return [leaf for item in packed for leaf in leaves(item)]
        return [packed]

    assert not any(isinstance(leaf, torch.Tensor) for leaf in leaves(pack(value)))


@settings(deadline=None, max_examples=80)
@given(NESTED)
def test_whatever_is_sealed_arrives_as_it_was(value):
    payload = seal(value)
    assert isinstance(payload, bytes)
    assert equal(unseal(payload), value)


def test_what_travels_in_a_message_can_be_written_to_where_it_arrives():
    assert unseal(seal(torch.ones(3))).zero_().tolist() == [0, 0, 0]


@pytest.mark.real_time
async def test_only_what_is_large_stays_in_memory():
    small = {"image": torch.zeros(INLINE_BYTES // 2, dtype=torch.uint8), "words": ["x" * (INLINE_BYTES // 2)]}
    large = {**small, "state": (torch.zeros(1, dtype=torch.bfloat16),)}
    memory, reader = ShownMemory(Listening.ASKED_WITH), Reader()
    for value, kind in ((large, list), (small, bytes), (large, list)):
        with sealed(value, memory) as payload:
            assert type(payload) is kind
            assert equal(await read_sealed(pickle.loads(pickle.dumps(payload)), reader), value)


@pytest.mark.real_time
async def test_what_cannot_be_read_any_more_is_an_error_in_its_place():
    memory = ShownMemory(Listening.ASKED_WITH)
    with pytest.raises(KeyError), sealed(torch.zeros(INLINE_BYTES), memory) as payload:
        raise KeyError  # the asker gives up
    read = await read_sealed(payload, Reader())
    assert isinstance(read, PeerError)
    assert "the data of a request cannot be read" in str(read)
    value = {"x": torch.arange(INLINE_BYTES)}
    with sealed(value, ShownMemory(Listening.ASKED_WITH)) as near:
        one, gone, other = await read_each_sealed([near, payload, seal(value)], Reader())
    assert isinstance(gone, PeerError)
    assert equal(one, value)
    assert equal(other, value)


ROWS = (
    torch.arange(3 * 64).reshape(3, 64),
    torch.arange(3 * 5).reshape(3, 5),  # no multiple of the alignment
    torch.rand(3, 2, 32).bfloat16(),
    torch.rand(3, 7).bfloat16(),
    torch.rand(1, 64),
    torch.zeros(3, 2, 0),
    torch.rand(3, 32, 4).transpose(1, 2),
)


@pytest.mark.parametrize("whole", ROWS, ids=lambda rows: f"{list(rows.shape)} {rows.dtype}")
def test_a_stack_of_rows_arrives_as_one_tensor(whole):
    stack = RowStack(whole.unbind())
    shown = MemoryPool(memory.Reuse.UNMAPPED)
    with shown.holding(pack({"x": stack}, adjoin=Adjoined)) as place:
        found = unpack(memory.read(place))["x"]
    for each in (found, unseal(seal({"x": stack}))["x"]):
        assert each.dtype == whole.dtype
        assert torch.equal(each, whole)


def test_a_stack_is_not_copied_where_it_is_read_and_keeps_its_mapping():
    whole = torch.arange(4 * 65, dtype=torch.uint8).reshape(4, 65)
    pool = MemoryPool(memory.Reuse.UNMAPPED)
    with pool.holding(pack([RowStack(whole.unbind()), torch.zeros(3)], adjoin=Adjoined)) as place:
        (found, _), other = unpack(memory.read(place)), torch.zeros(1)
    row = found[3]
    del found
    with pool.holding(pack([torch.full((5, 65), 7)])) as place:
        assert len(pool._files) == 1, "the first file is mapped, and so another one was written"
        assert row.tolist() == whole[3].tolist()
    del row, other
    with pool.holding(pack([torch.zeros(1)])):
        assert len(pool._files) == 1


def test_what_is_mapped_ahead_is_what_it_was_and_stays_the_readers_own():
    size, pool = 300_001, MemoryPool(memory.Reuse.UNMAPPED)
    whole = torch.arange(size) % 251
    value = {
        "first": torch.zeros(3),
        "many": [(whole.to(torch.uint8), None), "text"],
        "empty": torch.zeros(0),
    }
    with pool.holding(pack(value)) as place:
        found, other = unpack(memory.read(place)), unpack(memory.read(place))
    found["many"][0][0][-1] = 255
    map_ahead(found)
    assert torch.equal(found["many"][0][0][:-1], whole[:-1])
    assert found["many"][0][0][-1] == 255
    assert torch.equal(other["many"][0][0], whole)
    map_ahead(torch.ones(size))  # as it comes from another machine


def test_pages_that_the_kernel_does_not_map_ahead_are_no_error():
    map_pages(0, 2**20)  # nothing is there


@pytest.mark.real_time
async def test_a_stack_that_stays_in_memory_is_written_once_and_described_in_few_bytes(two_machines):
    whole = torch.randint(0, 256, (200, 2, 4096), dtype=torch.uint8)
    shown, reader = ShownMemory(Listening.LARGE_ROLLOUTS), Reader()
    with sealed({"x": RowStack(whole.unbind())}, shown) as payload:
        assert len(pickle.dumps(payload)) < 1000
        for machine in ([], ["another"]):
            two_machines.extend(machine)
            assert torch.equal((await read_sealed(payload, reader))["x"], whole)
