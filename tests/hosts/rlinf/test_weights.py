"""Weights by our transport against RLinf's own syncers, without Ray, and the parameters of a version."""

import asyncio
import copy
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf
from rlinf.hybrid_engines.weight_syncer import BucketWeightSyncer
from rlinf.utils.utils import collect_param_names_need_sync
from torch import nn

from rlinf_async.hosts.rlinf import weights
from rlinf_async.hosts.rlinf.weights import Snapshot, TrainedShards, reshard
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


def test_names_that_the_receiver_does_not_have_are_not_sent_and_having_none_is_an_error():
    snapshot = Snapshot(Actor(Tied(0)))
    snapshot.types = {"table": torch.float32}
    assert set(snapshot.take().tensors) == {"table"}
    snapshot.types = {"other": torch.float32}
    with pytest.raises(ValueError, match="none of the learner's 10 tensors"):
        snapshot.take()


def test_a_rank_that_does_not_send_takes_part_and_keeps_nothing():
    actor = Actor(Tied(0), sends=False)
    with mock.patch.object(weights, "whole", side_effect=lambda tensor: tensor) as gathered:
        assert Snapshot(actor).take() is None
    assert gathered.call_count == len(actor.model.state_dict())


def actor_of(model, *frozen_for_now):
    return SimpleNamespace(model=model, store_requires_grad_param_name=list(frozen_for_now))


def model():
    made = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5))
    made[1].requires_grad_(False)
    return made


def test_a_version_is_made_of_what_is_trained_in_the_order_of_the_model():
    whole = model()
    found = TrainedShards(actor_of(whole))()
    named = dict(whole.named_parameters())
    expected = [named[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
    assert [one.data_ptr() for one in found] == [one.data_ptr() for one in expected]
    assert not any(one.requires_grad for one in found)


def test_what_is_frozen_while_the_critic_warms_up_belongs_to_it_from_the_first():
    whole = model()
    trained = TrainedShards(actor_of(whole, "1.bias"))
    assert [tuple(one.shape) for one in trained()] == [(3, 2), (3,), (4,), (5, 4), (5,)]
    whole[1].requires_grad_(True)
    whole[0].requires_grad_(False)
    assert [tuple(one.shape) for one in trained()] == [(3, 2), (3,), (4,), (5, 4), (5,)]


def test_of_a_parameter_that_is_spread_over_ranks_this_ranks_part_is_meant():
    whole = nn.Linear(2, 3, bias=False)
    part = torch.zeros(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Parameter, "detach", lambda _: SimpleNamespace(_local_tensor=part))
        (found,) = TrainedShards(actor_of(whole))()
    assert found is part


class Wrapped(nn.Module):
    """Stands for a module that FSDP2 has wrapped."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = nn.ModuleList(inner)
        self.resharded = 0

    def reshard(self):
        self.resharded += 1


class Handle:
    """Of a unit of FSDP1."""

    def __init__(self, *, sharded=True, knows_its_shard=True):
        self.uses_sharded_strategy = sharded
        self.flat_param = SimpleNamespace(**({"_local_shard": torch.zeros(1)} if knows_its_shard else {}))
        self.freed = []

    def reshard(self, *, free_unsharded_flat_param):
        self.freed.append(free_unsharded_flat_param)


def test_every_module_that_fsdp2_has_wrapped_forgets_what_it_gathered(monkeypatch):
    monkeypatch.setattr(weights, "FSDPModule", Wrapped)
    inner = Wrapped()
    outer = Wrapped(nn.Linear(1, 1), inner)
    reshard(outer)
    assert (outer.resharded, inner.resharded) == (1, 1)


def test_every_unit_of_fsdp1_that_has_gathered_anything_forgets_it(monkeypatch):
    handles = [None, Handle(sharded=False), Handle(knows_its_shard=False), Handle(), Handle()]
    asked = []

    def units(model):
        asked.append(model)
        return [SimpleNamespace(_handle=handle) for handle in handles]

    monkeypatch.setattr(weights, "FSDP", SimpleNamespace(fsdp_modules=units))
    whole = nn.Linear(1, 1)
    TrainedShards(actor_of(whole))()
    assert asked == [whole]
    assert [handle.freed for handle in handles[1:]] == [[], [], [True], [True]]
