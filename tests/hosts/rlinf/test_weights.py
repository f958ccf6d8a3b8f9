"""Weights by our transport against RLinf's own syncers, without Ray, and the parameters of a version."""

import asyncio
import copy

import pytest
import torch
from omegaconf import OmegaConf
from rlinf.hybrid_engines.weight_syncer import BucketWeightSyncer
from rlinf.utils.utils import collect_param_names_need_sync

from rlinf_async.hosts.rlinf.learner import Snapshot
from rlinf_async.ray_runtime.publication import weights as transport
from rlinf_async.ray_runtime.publication.weight_file import OpenedWeights

PATCH = {"type": "patch", "patch": {"init_sync": {"enabled": True}}}
"""What all but one of RLinf's examples have: nothing that a bucket syncer could be made from."""


class Actor:
    """What a snapshot needs of an RLinf actor."""

    store_requires_grad_param_name = ()

    def __init__(self, model, *, sends=True, syncer=PATCH):
        self.model, self._rank = model, 0 if sends else 1
        self.param_names_need_sync = collect_param_names_need_sync(model)
        self.cfg = OmegaConf.create({"weight_syncer": syncer})

    def get_rollout_state_dict(self):
        return self.model.state_dict()


class Tied(torch.nn.Module):
    """A frozen encoder, a buffer of every kind, and two names for one weight."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        super().__init__()
        self.encoder = torch.nn.Linear(5, 7).requires_grad_(False)
        self.norm = torch.nn.BatchNorm1d(7)
        self.inner = torch.nn.Linear(7, 7, bias=False)
        self.head = torch.nn.Linear(7, 7, bias=False)
        self.head.weight = self.inner.weight
        self.register_buffer("table", torch.rand(3))
        self.register_buffer("scratch", torch.full((2,), float(seed)), persistent=False)


def shift(model, by=1.0):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += by
        model.norm.running_mean += by
        model.norm.num_batches_tracked += 1


def same(one, other):
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def there(taken, version=0):
    """The tensors of a copy as another process reads them, which is published first."""
    arrived = {}
    for part in taken.parts:
        part.publish(version)
        if (place := part.place(("nobody", b""))) is not None and place.version == version:
            with OpenedWeights(place) as tensors:
                arrived |= {name: tensor.clone() for name, tensor in tensors.items()}
    assert arrived.keys() == taken.tensors.keys()
    return arrived


def by_rlinf(sender, receiver, *, version=1, **options):
    """RLinf's bucket syncer, from one model to the other; the version that arrives."""
    bucket = {"bucket_size": 64, "bucket_dtype": None, "bucket_device": "cpu", **options}
    one, other = BucketWeightSyncer(**bucket), BucketWeightSyncer(**bucket)

    async def main():
        sent = asyncio.Queue()
        await one.init_sender(
            state_dict=sender.state_dict(),
            send=sent.put,
            param_names_need_sync=collect_param_names_need_sync(sender),
        )
        await one.sync(sender.state_dict(), sent.put, version=version)
        return await other.apply(receiver, sent.get)

    return asyncio.run(main())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bucket_dtype", [None, "bf16"])
@pytest.mark.parametrize("load_instant", [False, True])
@pytest.mark.parametrize("knows", [False, True])
def test_the_receiver_ends_as_it_does_by_rlinfs_own_bucket_syncer(dtype, bucket_dtype, load_instant, knows):
    sender, ours = Tied(0), Tied(0).to(dtype)
    shift(sender, 0.123)
    theirs = copy.deepcopy(ours)
    by_rlinf(sender, theirs, bucket_dtype=bucket_dtype, load_instant=load_instant)
    bucket = {"bucket_size": 64, "bucket_dtype": bucket_dtype}
    snapshot = Snapshot(Actor(sender, syncer={"type": "bucket", "bucket": bucket}))
    if knows:
        snapshot.types = transport.types_of(ours)
    transport.apply(ours, there(snapshot.take()))
    assert same(ours, theirs)
    assert torch.equal(ours.scratch, theirs.scratch)
    assert ours.head.weight is ours.inner.weight
    assert not torch.equal(ours.head.weight, Tied(0).to(dtype).head.weight)


def test_later_snapshots_hold_what_rlinf_synchronises_and_the_first_all_else_too():
    sender, receiver = Tied(0), Tied(1)
    snapshot = Snapshot(Actor(sender))
    transport.apply(receiver, there(snapshot.take()))
    assert same(sender, receiver)
    shift(sender)
    later = there(snapshot.take(), 1)
    assert set(later) == set(collect_param_names_need_sync(sender))
    assert "encoder.weight" not in later
    transport.apply(receiver, later)
    assert same(sender, receiver)


def test_rank_0_alone_sends():
    assert Snapshot(Actor(Tied(0), sends=False)).take() is None
