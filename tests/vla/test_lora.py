"""RLinf's LoRA on RLinf's own model classes: a step of the learner, and what inference makes of it."""

import gc
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("rlinf", reason="RLinf is not installed")

from rlinf.models import get_model
from rlinf.utils.utils import collect_param_names_need_sync

from rlinf_async.hosts.kit.samples import samples_of
from rlinf_async.hosts.rlinf.footprints import VLM_PREFIX
from rlinf_async.hosts.rlinf.learner import Snapshot
from rlinf_async.hosts.rlinf.models import WITHOUT_ADAPTERS
from rlinf_async.hosts.rlinf.scoring import score
from rlinf_async.ray_runtime.publication.weights import apply, types_of
from tests.vla.classes import inference, learner, observations, off_by, rescored, rollout

SIZE = 2
RATE = 0.01


@pytest.fixture(scope="module")
def cfg(case, tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    with case.environment(place):
        made = case.configure(place)
        made.actor.model.update({"is_lora": True, "lora_rank": 4, "lora_path": None})
        made.actor.model.add_value_head = True  # as RLinf's PPO configs of OpenVLA-OFT have it
        yield made
    gc.collect()


@pytest.fixture(scope="module")
def pair(case, cfg):
    """A learner, as RLinf's actor publishes it, and an inference rank's model, which drew other weights."""
    if cfg.actor.model.model_type in WITHOUT_ADAPTERS:
        pytest.skip("RLinf's adapters find no layer in it")
    torch.manual_seed(0)
    model = get_model(cfg.actor.model)
    torch.manual_seed(1)
    other = get_model(cfg.actor.model)
    actor = learner(model, cfg)
    actor.get_rollout_state_dict, actor._rank = model.state_dict, 0
    actor.param_names_need_sync = collect_param_names_need_sync(model)
    snapshot = Snapshot(actor)
    snapshot.types = types_of(other)
    return SimpleNamespace(case=case, cfg=cfg, actor=actor, snapshot=snapshot, other=other)


def publish(pair):
    """The names that were sent."""
    tensors = pair.snapshot.take().tensors
    apply(pair.other, tensors)
    return set(tensors)


def act(pair, seed):
    shown = [observations(SIZE, seed=seed + number, side=pair.case.side) for number in range(3)]
    return rollout(inference(pair.other, pair.cfg), shown)


def difference(pair, fields, last):
    """Between what inference stored and what the learner scores."""
    again = rescored(pair.actor.model, pair.cfg, fields, last, micro_batch_size=SIZE, values=False)
    stored = again.get("acted_logprobs", fields["prev_logprobs"])
    return off_by(again["proximal_logprobs"], stored.reshape(again["proximal_logprobs"].shape))


def step(pair, fields):
    """One step of plain gradient descent on log-probabilities and values."""
    model = pair.actor.model
    model.eval()
    output = score(pair.cfg, model, samples_of(fields), values=True)
    (output["logprobs"].float().mean() + output["values"].float().mean()).backward()
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    with torch.no_grad():
        for each in trained.values():
            if each.grad is not None:
                each -= RATE * each.grad / each.grad.norm().clamp(min=1e-12)


def test_a_step_of_the_adapters_reaches_inference(pair):
    assert publish(pair) == set(pair.actor.model.state_dict()) & set(types_of(pair.other))
    fields, last = act(pair, 1)
    assert difference(pair, fields, last) <= 1e-6
    before = {name: each.detach().clone() for name, each in pair.actor.model.named_parameters()}
    for _ in range(2):  # the first step moves only the half of an adapter that begins at zero
        step(pair, fields)
    moved = {n for n, each in pair.actor.model.named_parameters() if not torch.equal(each, before[n])}
    assert {name.split(".")[-3] for name in moved if ".lora_" in name} == {"lora_A", "lora_B"}
    assert difference(pair, fields, last) > 1e-3
    sent = publish(pair)
    assert moved <= sent == set(pair.actor.param_names_need_sync)
    again, last = act(pair, 4)
    assert difference(pair, again, last) <= 1e-6


def test_beside_adapters_rlinf_trains_what_the_page_says(pair):
    named = pair.actor.model.named_parameters()
    beside = {name for name, each in named if each.requires_grad and ".lora_" not in name}
    critic = {name for name in beside if "value_head." in name}
    if pair.cfg.actor.model.model_type == "gr00t":
        assert not beside  # nor its critic, which RLinf looks for elsewhere
    elif pair.cfg.actor.model.model_type == "openpi":
        assert critic
        assert any(".gemma_expert." in name for name in beside)
        assert not any(name.startswith(VLM_PREFIX["openpi"]) for name in beside)
    else:
        assert beside == critic != set()


def test_a_class_without_such_layers_is_refused_by_rlinf_too(cfg):
    if cfg.actor.model.model_type not in WITHOUT_ADAPTERS:
        pytest.skip("RLinf's adapters find layers in it")
    with pytest.raises(ValueError, match=r"Target modules .* not found in the base model"):
        get_model(cfg.actor.model)
