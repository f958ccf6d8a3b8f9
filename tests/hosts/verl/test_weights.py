"""What leaves the learner as its weights."""

import pytest

pytest.importorskip("verl", reason="needs veRL")

import torch

from rlinf_async.hosts.verl.learner_worker import EngineWeights
from rlinf_async.ray_runtime.publication.weights import types_of
from tests.hosts.verl.engines import learner, settings, weights

pytestmark = pytest.mark.verl


def copied(copy):
    return {name: tensor.clone() for name, tensor in copy.take().tensors.items()}


def same(ones, others):
    return ones.keys() == others.keys() and all(torch.equal(one, others[name]) for name, one in ones.items())


def test_the_first_copy_has_all_weights_and_later_ones_those_that_training_changes():
    worker = learner(settings())
    for name, parameter in worker.engine.module.named_parameters():
        parameter.requires_grad_(not name.startswith("backbone"))
    copy = EngineWeights(worker.engine, sends=True)
    assert same(copied(copy), weights(worker))

    for shard in worker.engine.trained_shards():
        shard.add_(1.0)
    expected = {name: held for name, held in weights(worker).items() if not name.startswith("backbone")}
    assert same(copied(copy), expected)


def test_only_what_the_receivers_hold_is_sent_and_in_no_wider_type():
    worker = learner(settings())
    copy = EngineWeights(worker.engine, sends=True)
    held = types_of(worker.engine.module)
    copy.types = {
        name: torch.bfloat16 if name.startswith("backbone") else torch.float64
        for name in held
        if not name.startswith("value_head")
    }
    found = copied(copy)
    assert found.keys() == copy.types.keys()
    assert {found[name].dtype for name in found if name.startswith("backbone")} == {torch.bfloat16}
    assert found["actor_logstd"].dtype == torch.float32
    assert torch.equal(found["backbone.0.weight"], weights(worker)["backbone.0.weight"].bfloat16())


def test_a_rank_that_does_not_send_takes_part_and_keeps_nothing():
    assert EngineWeights(learner(settings()).engine, sends=False).take() is None


def test_receivers_that_know_none_of_the_names_are_an_error():
    copy = EngineWeights(learner(settings()).engine, sends=True)
    copy.types = {"module.other": torch.float32}
    with pytest.raises(ValueError, match="none of the learner's 16 tensors"):
        copy.take()
