"""Weights on their way to inference, without Ray."""

import copy
import threading
from concurrent.futures import Future
from unittest import mock

import pytest
import ray
import torch

from rlinf_async.core.failures import PeerError
from rlinf_async.observe.spans import SpanLog
from rlinf_async.ray_runtime.publication import weights
from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights
from rlinf_async.ray_runtime.publication.weights import WeightCopy
from tests.ray_runtime.publication.copies import Copy, read

pytestmark = pytest.mark.real_time


def layer(seed, *, bias=None):
    torch.manual_seed(seed)
    made = torch.nn.Linear(3, 5)
    if bias is not None:
        torch.nn.init.constant_(made.bias, bias)
    return made


def same(one, other):
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


class Channel:
    """A coordinator whose `offer_weights` ends when the test says so."""

    def __init__(self):
        self.answers = [Future(), Future()]
        self.offered = []
        self.offer_weights = self

    def remote(self, version, places):
        self.offered.append((version, places, threading.current_thread().name))
        answer = mock.Mock()
        answer.future.return_value = self.answers[len(self.offered) - 1]
        return answer


@pytest.fixture
def channel():
    return Channel()


def sender_of(model, *, sends=True, changing=None, keeps=False):
    sender = weights.WeightSender(Copy(model, changing, sends=sends))
    sender.expect(weights.types_of(model), keeps=keeps)
    return sender


async def test_weights_leave_from_a_thread_of_their_own_while_the_learner_goes_on(channel):
    model, receiver = layer(0), layer(1)
    sender, then = sender_of(model), copy.deepcopy(model)
    assert await sender.offer(3, channel, SpanLog(None)) > 0.0
    with torch.no_grad():
        model.weight += 1
    channel.answers[0].set_result(None)
    await sender.sent()
    ((version, (place,), thread),) = channel.offered
    assert (version, thread) == (3, "weights_0")
    weights.apply(receiver, read(place))
    assert same(then, receiver)


async def test_an_error_while_weights_are_sent_is_raised_to_whoever_waits_and_by_the_next_offer(channel):
    sender = sender_of(layer(0))
    await sender.offer(3, channel, SpanLog(None))
    channel.answers[0].set_exception(MemoryError("the object store is full"))
    for later in (sender.sent, lambda: sender.offer(4, channel, SpanLog(None))):
        with pytest.raises(MemoryError, match="object store"):
            await later()
    assert len(channel.offered) == 1


async def test_weights_that_are_not_finite_are_not_offered(channel):
    channel.answers[0].set_result(None)
    sender = sender_of(layer(0, bias=torch.nan))
    await sender.offer(3, channel, SpanLog(None))
    with pytest.raises(RuntimeError, match="bias"):
        await sender.sent()
    assert channel.offered == []


async def test_large_numbers_that_are_finite_are_offered(channel):
    channel.answers[0].set_result(None)
    sender = sender_of(layer(0, bias=3e38))
    await sender.offer(3, channel, SpanLog(None))
    await sender.sent()
    assert [version for version, _, _ in channel.offered] == [3]


@pytest.mark.parametrize("keeps", [False, True])
async def test_what_training_does_not_change_is_copied_once_and_kept_for_later_ranks(channel, keeps):
    model = layer(0)
    sender = sender_of(model, changing={"bias"}, keeps=keeps)
    channel.answers.append(Future())
    for version in range(3):
        channel.answers[version].set_result(None)
        await sender.offer(version, channel, SpanLog(None))
        await sender.sent()
        with torch.no_grad():
            model.bias.fill_(version)
    (_, first, _), (_, second, _), (_, third, _) = channel.offered
    assert [place.changes for place in first] == [False, True]
    assert [(place.changes, place.version) for place in third] == [(False, 0), (True, 2)][not keeps :]
    assert first[:keeps] == second[:keeps] == third[:keeps]
    assert [read(place)["bias"][0].item() for place in (second[-1], third[-1])] == [0.0, 1.0]
    if keeps:
        assert torch.equal(read(third[0])["weight"], model.weight)
    else:
        with pytest.raises(PeerError, match=r"cannot read the memory|has released the memory"):
            OpenedWeights(first[0])


async def test_ranks_that_do_not_send_offer_nothing(channel):
    sender = sender_of(layer(0), sends=False)
    await sender.offer(3, channel, SpanLog(None))
    await sender.sent()
    assert channel.offered == []


async def test_what_is_to_be_done_after_the_copy_is_done_before_anything_is_sent(channel):
    offered, sender = [], sender_of(layer(0))
    await sender.offer(1, channel, SpanLog(None), on_copy=lambda: offered.append(len(channel.offered)))
    assert offered == [0]
    channel.answers[0].set_result(None)
    await sender.sent()


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
    copied = Copy(layer(0))
    types = {} if wanted is None else {"one": wanted}
    places = copied.places({"one": torch.zeros(2, 3, dtype=own)}, types)
    assert (places["one"].dtype, places["one"].shape) == (held, (2, 3))


@pytest.mark.parametrize(
    ("numbers", "finite"),
    [
        ([1.0, 2.0], True),
        ([1.0, float("nan")], False),
        ([float("inf"), -float("inf")], False),
        ([3e38, 3e38], False),  # are, and their sum is not: whoever sends them looks again
        ([3.4e38, 0.0], False),  # not in the type in which they are sent
    ],
)
def test_a_copy_says_if_what_it_holds_may_not_be_finite(numbers, finite):
    copied = WeightCopy()
    tensors = {"bad": torch.tensor(numbers), "good": torch.ones(3), "count": torch.tensor(2**40)}
    copied.choose(tensors, changing=tensors)
    places = copied.places(tensors, {"bad": torch.bfloat16})
    for name, place in places.items():
        copied.write(place, tensors[name])
    assert copied.snapshot().finite() is finite


def test_what_a_test_forgets_to_stand_in_for_starts_no_cluster():
    with pytest.raises(ray.exceptions.RaySystemError, match="has not been started"):
        ray.put(1)
