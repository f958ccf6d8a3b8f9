"""Weights on their way to inference, without Ray."""

import asyncio
import copy
import threading
import warnings
import weakref
from concurrent.futures import Future
from unittest import mock

import numpy as np
import pytest
import ray
import torch

from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime import weights
from rlinf_async.ray_runtime.copied_weights import CopiedWeights
from rlinf_async.ray_runtime.wire import pack


def layer(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 5)


def same(one, other):
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


class Copy:
    """The least that a host has to fill in."""

    def __init__(self, model):
        self.model, self.types, self.memory = model, {}, {}

    def take(self):
        chosen = {name: tensor for name, tensor in self.model.state_dict().items() if name in self.types}
        self.memory = weights.places_for(chosen, self.types, self.memory)
        for name, tensor in chosen.items():
            self.memory[name].copy_(tensor)
        return weights.chunks_of(self.memory)


class Channel:
    """A coordinator whose `offer_weights` ends when the test says so."""

    def __init__(self):
        self.answers = [Future(), Future()]
        self.offered, self.whole = [], []
        self.offer_weights = self

    def remote(self, version, payload, whole):
        self.whole.append(whole)
        self.offered.append((version, payload, threading.current_thread().name))
        answer = mock.Mock()
        answer.future.return_value = self.answers[len(self.offered) - 1]
        return answer


@pytest.fixture
def channel():
    with mock.patch.object(weights.ray, "put", side_effect=copy.deepcopy):
        yield Channel()


def sender_of(model, *, sends=True):
    sender = weights.WeightSender(Copy(model), sends=sends)
    sender.expect(weights.types_of(model))
    return sender


def test_weights_leave_from_a_thread_of_their_own_while_the_learner_goes_on(channel):
    async def main():
        model, receiver = layer(0), layer(1)
        sender, then = sender_of(model), copy.deepcopy(model)
        assert await sender.offer(3, channel, SpanLog(None)) > 0.0
        with torch.no_grad():
            model.weight += 1
        channel.answers[0].set_result(None)
        await sender.sent()
        ((version, chunks, thread),) = channel.offered
        assert (version, thread) == (3, "weights_0")
        weights.apply(receiver, chunks)
        assert same(then, receiver)

    asyncio.run(main())


def test_an_error_while_weights_are_sent_is_raised_to_whoever_waits_and_by_the_next_offer(channel):
    async def main():
        sender = sender_of(layer(0))
        await sender.offer(3, channel, SpanLog(None))
        channel.answers[0].set_exception(MemoryError("the object store is full"))
        for later in (sender.sent, lambda: sender.offer(4, channel, SpanLog(None))):
            with pytest.raises(MemoryError, match="object store"):
                await later()
        assert len(channel.offered) == 1

    asyncio.run(main())


def test_weights_that_are_not_finite_are_not_offered(channel):
    async def main():
        model = layer(0)
        with torch.no_grad():
            model.bias[1] = torch.nan
        channel.answers[0].set_result(None)
        sender = sender_of(model)
        await sender.offer(3, channel, SpanLog(None))
        with pytest.raises(RuntimeError, match="bias"):
            await sender.sent()
        assert channel.offered == []

    asyncio.run(main())


def test_only_copies_that_name_all_weights_of_the_first_are_offered_as_whole(channel):
    async def main():
        model = layer(0)
        sender, every = sender_of(model), weights.types_of(model)
        channel.answers.append(Future())
        for version, names in enumerate((every, ["bias"], every)):
            sender.expect({name: every[name] for name in names})
            channel.answers[version].set_result(None)
            await sender.offer(version, channel, SpanLog(None))
            await sender.sent()
        assert channel.whole == [True, False, True]
        assert [{name for chunk in chunks for name in chunk} for _, chunks, _ in channel.offered] == [
            {"weight", "bias"},
            {"bias"},
            {"weight", "bias"},
        ]

    asyncio.run(main())


def test_ranks_that_do_not_send_offer_nothing(channel):
    async def main():
        sender = sender_of(layer(0), sends=False)
        await sender.offer(3, channel, SpanLog(None))
        await sender.sent()
        assert channel.offered == []

    asyncio.run(main())


def test_what_is_to_be_done_after_the_copy_is_done_before_anything_is_sent(channel):
    async def main():
        offered, sender = [], sender_of(layer(0))
        await sender.offer(1, channel, SpanLog(None), copied=lambda: offered.append(len(channel.offered)))
        assert offered == [0]
        channel.answers[0].set_result(None)
        await sender.sent()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("own", "wanted", "held"),
    [
        (torch.float32, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float16, torch.bfloat16, torch.bfloat16),
        (torch.int64, torch.float32, torch.int64),
        (torch.float32, None, torch.float32),
    ],
)
def test_a_tensor_is_held_in_the_receivers_type_unless_that_is_wider_or_no_number_of_its_kind(
    own, wanted, held
):
    types = {} if wanted is None else {"one": wanted}
    places = weights.places_for({"one": torch.zeros(2, 3, dtype=own)}, types, {})
    assert (places["one"].dtype, places["one"].shape) == (held, (2, 3))


def test_memory_is_used_again_as_long_as_the_names_agree():
    chosen = layer(0).state_dict()
    first = weights.places_for(chosen, {}, {})
    assert weights.places_for(chosen, {}, first) is first
    assert weights.places_for({"weight": chosen["weight"]}, {}, first).keys() == {"weight"}


def test_the_memory_of_the_first_copy_is_let_go_where_later_ones_hold_less():
    state, copied = layer(0).state_dict(), CopiedWeights()

    def take():
        names = copied.choose(state, changing={"bias"})
        memory = weakref.ref(copied.places({name: state[name] for name in names})[names[0]])
        copied.copied()
        return names, memory

    first, whole = take()
    assert whole() is None
    later, part = take()
    assert (first, later) == (["weight", "bias"], ["bias"])
    assert part() is not None


def test_chunks_are_bounded_and_hold_everything_once(monkeypatch):
    monkeypatch.setattr(weights, "BLOCK_BYTES", 100)
    memory = {str(index): torch.zeros(index) for index in range(1, 12)}
    chunks = weights.chunks_of(memory)
    assert [name for chunk in chunks for name in chunk] == list(memory)
    assert all(sum(tensor.nbytes for tensor in chunk.values()) <= 100 for chunk in chunks)
    assert weights.chunks_of({}) == []


def test_reading_a_chunk_copies_nothing_and_warns_of_nothing():
    chunk = pack({"plain": torch.arange(6.0).reshape(2, 3), "brain": torch.ones(4).bfloat16()})
    for array in chunk.values():  # as in Ray's object store
        (array if isinstance(array, np.ndarray) else array.data).setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = weights.borrow(chunk)
    assert torch.equal(found["plain"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(found["brain"], torch.ones(4).bfloat16())
    assert found["plain"].data_ptr() == chunk["plain"].ctypes.data
    assert found["brain"].data_ptr() == chunk["brain"].data.ctypes.data


def test_what_a_test_forgets_to_stand_in_for_starts_no_cluster():
    with pytest.raises(ray.exceptions.RaySystemError, match="has not been started"):
        ray.put(1)
