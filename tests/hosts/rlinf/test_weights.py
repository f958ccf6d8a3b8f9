"""Weights by RLinf's own syncer and our transport, without Ray."""

import asyncio
import copy
import threading
from concurrent.futures import Future
from unittest import mock

import pytest
import torch
from rlinf.hybrid_engines.weight_syncer import BucketWeightSyncer

from rlinf_async.core.spans import SpanLog
from rlinf_async.hosts.rlinf import weights
from rlinf_async.hosts.rlinf.wire import pack, unpack


class Actor:
    """What a snapshot needs of an RLinf actor."""

    def __init__(self, model, *, sends=True, **options):
        self.model, self._is_weight_sender = model, sends
        self.weight_syncer = syncer(**options)
        self.param_names_need_sync = list(model.state_dict())

    def get_rollout_state_dict(self):
        return self.model.state_dict()


def syncer(bucket_size=64, bucket_dtype=None, load_instant=False):
    return BucketWeightSyncer(bucket_size, bucket_dtype, "cpu", load_instant=load_instant)


def model_of(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))


def shift(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0


def same(one, other):
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize("load_instant", [False, True])
@pytest.mark.parametrize("bucket_size", [1, 64, 2**20])
def test_the_receiver_ends_with_the_senders_weights_and_version(bucket_size, load_instant):
    sender, receiver = model_of(0), model_of(1)
    taken = asyncio.run(weights.snapshot(Actor(sender, bucket_size=bucket_size), 7))
    there = syncer(load_instant=load_instant)
    for _ in range(2):  # a snapshot is not used up: every inference rank applies the same
        assert asyncio.run(weights.apply(there, receiver, unpack(pack(taken)))) == 7
    assert same(sender, receiver)
    assert not any(torch.isnan(tensor).any() for tensor in receiver.state_dict().values())


def test_a_snapshot_stays_as_it_is_when_the_learner_goes_on():
    sender, receiver = model_of(0), model_of(1)
    then = copy.deepcopy(sender)
    taken = asyncio.run(weights.snapshot(Actor(sender), 1))
    shift(sender)
    asyncio.run(weights.apply(syncer(), receiver, taken))
    assert same(then, receiver)


def test_bfloat16_buckets_arrive():
    sender, receiver = model_of(0), model_of(1)
    taken = asyncio.run(weights.snapshot(Actor(sender, bucket_dtype="bf16"), 1))
    asyncio.run(weights.apply(syncer(), receiver, unpack(pack(taken))))
    rounded = {name: tensor.bfloat16().to(tensor.dtype) for name, tensor in sender.named_parameters()}
    assert all(torch.equal(rounded[name], tensor) for name, tensor in receiver.named_parameters())


def test_a_rank_that_does_not_send_takes_part_and_keeps_nothing():
    actor = Actor(model_of(0), sends=False)
    with mock.patch.object(
        actor.weight_syncer, "iter_buckets", wraps=actor.weight_syncer.iter_buckets
    ) as made:
        assert asyncio.run(weights.snapshot(actor, 1)) == []
    assert made.called


class Channel:
    """A trajectory channel whose `offer_weights` ends when the test says so."""

    def __init__(self):
        self.answers = [Future(), Future()]
        self.offered = []
        self.offer_weights = self

    def remote(self, version, payload):
        self.offered.append((version, payload, threading.current_thread().name))
        answer = mock.Mock()
        answer.future.return_value = self.answers[len(self.offered) - 1]
        return answer


@pytest.fixture
def channel():
    with mock.patch.object(weights.ray, "put", side_effect=lambda value: value):
        yield Channel()


def test_weights_leave_from_a_thread_of_their_own_while_the_learner_goes_on(channel):
    async def main():
        sender, receiver = model_of(0), model_of(1)
        source = weights.WeightSender(Actor(sender))
        then = copy.deepcopy(sender)
        assert await source.offer(3, channel, SpanLog(None)) > 0.0
        shift(sender)
        channel.answers[0].set_result(None)
        await source.sent()
        ((version, (payload,), thread),) = channel.offered
        assert (version, thread) == (3, "weights_0")
        await weights.apply(syncer(), receiver, unpack(payload))
        assert same(then, receiver)

    asyncio.run(main())


def test_an_error_while_weights_are_sent_is_raised_to_whoever_waits_and_by_the_next_offer(channel):
    async def main():
        source = weights.WeightSender(Actor(model_of(0)))
        await source.offer(3, channel, SpanLog(None))
        channel.answers[0].set_exception(MemoryError("the object store is full"))
        for later in (source.sent, lambda: source.offer(4, channel, SpanLog(None))):
            with pytest.raises(MemoryError, match="object store"):
                await later()
        assert len(channel.offered) == 1

    asyncio.run(main())


def test_ranks_that_do_not_send_offer_nothing(channel):
    async def main():
        source = weights.WeightSender(Actor(model_of(0), sends=False))
        await source.offer(3, channel, SpanLog(None))
        await source.sent()
        assert channel.offered == []

    asyncio.run(main())
