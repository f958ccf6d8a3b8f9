"""Which parameters a policy version is made of, what is forgotten before they are read, and what is sent."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.distributed import fsdp

from rlinf_async.hosts.kit import sharded
from rlinf_async.hosts.kit.sharded import ShardedWeights, TrainedShards, reshard


def model():
    made = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5))
    made[1].requires_grad_(False)
    return made


def test_a_version_is_made_of_what_is_trained_in_the_order_of_the_model():
    whole = model()
    found = TrainedShards(whole)()
    named = dict(whole.named_parameters())
    expected = [named[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]
    assert [one.data_ptr() for one in found] == [one.data_ptr() for one in expected]
    assert not any(one.requires_grad for one in found)


def test_what_is_frozen_for_a_while_belongs_to_it_from_the_first():
    whole = model()
    trained = TrainedShards(whole, frozen_for_now=["1.bias"])
    assert [tuple(one.shape) for one in trained()] == [(3, 2), (3,), (4,), (5, 4), (5,)]
    whole[1].requires_grad_(True)
    whole[0].requires_grad_(False)
    assert [tuple(one.shape) for one in trained()] == [(3, 2), (3,), (4,), (5, 4), (5,)]


def test_of_a_parameter_that_is_spread_over_ranks_this_ranks_part_is_meant():
    whole = nn.Linear(2, 3, bias=False)
    part = torch.zeros(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Parameter, "detach", lambda _: SimpleNamespace(_local_tensor=part))
        (found,) = TrainedShards(whole)()
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
    monkeypatch.setattr(fsdp, "FSDPModule", Wrapped)
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

    monkeypatch.setattr(fsdp, "FullyShardedDataParallel", SimpleNamespace(fsdp_modules=units))
    whole = nn.Linear(1, 1)
    TrainedShards(whole)()
    assert asked == [whole]
    assert [handle.freed for handle in handles[1:]] == [[], [], [True], [True]]


def copied(copy):
    return {name: tensor.clone() for name, tensor in copy.take().tensors.items()}


def test_the_first_copy_has_all_weights_and_later_ones_those_that_training_changes():
    policy = model()
    copy = ShardedWeights(policy, sends=True)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    first = copied(copy)
    assert first.keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in first.items())
    for shard in TrainedShards(policy)():
        shard.add_(1.0)
    later = copied(copy)
    assert later.keys() == {name for name in before if not name.startswith("1.")}
    assert all(torch.equal(tensor, before[name] + 1.0) for name, tensor in later.items())


def test_only_what_the_receivers_hold_is_sent_and_in_no_wider_type():
    policy = model()
    copy = ShardedWeights(policy, sends=True)
    copy.types = {"0.weight": torch.bfloat16, "2.weight": torch.float64}
    found = copied(copy)
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "0.weight": torch.bfloat16,
        "2.weight": torch.float32,
    }
    assert torch.equal(found["0.weight"], policy[0].weight.detach().bfloat16())


def test_a_rank_that_does_not_send_takes_part_and_keeps_nothing(monkeypatch):
    gathered = []
    monkeypatch.setattr(sharded, "whole", lambda tensor: gathered.append(tensor) or tensor)
    assert ShardedWeights(model(), sends=False).take() is None
    assert len(gathered) == len(model().state_dict())


def test_receivers_that_know_none_of_the_names_are_an_error():
    copy = ShardedWeights(model(), sends=True)
    copy.types = {"module.other": torch.float32}
    with pytest.raises(ValueError, match="none of the learner's 6 tensors"):
        copy.take()
