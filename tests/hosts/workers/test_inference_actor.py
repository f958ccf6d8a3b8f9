"""Answers of one inference rank: whose they are, who made them, and what padding leaves of them."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

pytest.importorskip("omegaconf", reason="OmegaConf is not installed")
pytest.importorskip("ray", reason="Ray is not installed")

import torch
from torch import nn

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.workers import inference_actor, policy
from rlinf_async.loops.requests import Pending
from rlinf_async.wire.payloads import seal
from tests.hosts.workers.given import ACTION, CHUNK, settings
from tests.making import request


class Reckoner(nn.Module):
    """Acts by the state, which it says back, and counts its passes."""

    def __init__(self, cfg):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1))
        self.sizes, self.modes = [], []
        self.values = bool(cfg.add_value_head)

    def predict_action_batch(self, env_obs, mode="train"):
        states = env_obs["states"]
        self.sizes.append(len(states))
        self.modes.append(mode)
        actions = states[:, :1, None].expand(-1, CHUNK, ACTION)
        return actions, {
            "prev_logprobs": actions.flatten(1),
            "prev_values": states[:, :1] * self.weight.detach() if self.values else None,
            "forward_inputs": {"states": states, "pixels": env_obs["main_images"]},
        }

    def forward(self, forward_inputs, compute_logprobs, compute_entropy, compute_values):
        states = forward_inputs["states"]
        assert compute_logprobs
        assert not compute_entropy
        return {"logprobs": -states, **({"values": states * self.weight} if compute_values else {})}


@pytest.fixture
def actor(monkeypatch):
    monkeypatch.setattr(policy, "load_class", lambda *_: lambda cfg, dtype: Reckoner(cfg))

    def make(*, rank=0, add_value_head=True, **changes):
        section = {"model_type": "reckoner", "add_value_head": add_value_head}
        made = inference_actor.InferenceActor(section, None, settings(**changes), rank)
        asyncio.run(made.initialise())
        return made

    return make


def observation(shard, size):
    states = torch.arange(size)[:, None] + 10.0 * shard
    pictures = torch.full((size, 2, 2), shard, dtype=torch.uint8)
    return {
        "states": states,
        "main_images": pictures,
        "wrist_images": None,
        "task_descriptions": ["walk"] * size,
    }


def asked(shard, size, *, mode="train", final=None):
    payload = {"obs": observation(shard, size), "final_obs": final}
    return Pending(request=request(shard, size, payload=seal(payload), mode=mode))


def answers(worker, *batch):
    return asyncio.run(worker.act(list(batch)))


def test_everyone_gets_the_answer_to_what_he_asked(actor):
    one, two = answers(actor(), asked(1, 2), asked(2, 3))
    assert one["actions"][:, 0, 0].tolist() == [10, 11]
    assert two["actions"][:, 0, 0].tolist() == [20, 21, 22]
    assert two["prev_logprobs"].shape == (3, CHUNK * ACTION)
    assert two["forward_inputs"]["states"].flatten().tolist() == [20, 21, 22]


def test_pictures_do_not_travel_back(actor):
    (answer,) = answers(actor(), asked(1, 2))
    assert answer["echoes"] == {"pixels": "main_images"}
    assert "pixels" not in answer["forward_inputs"]


def test_an_evaluation_is_asked_apart_and_brings_actions_alone(actor):
    worker = actor()
    one, two = answers(worker, asked(1, 2, mode="eval"), asked(2, 3))
    assert worker.policy_module().modes == ["train", "eval"]
    assert one.keys() == {"version", "actions"}
    assert "prev_logprobs" in two


def test_final_observations_are_valued_for_those_who_have_some(actor):
    worker = actor()
    one, two = answers(worker, asked(1, 2), asked(2, 3, final=observation(5, 3)))
    weight = worker.policy_module().weight.detach()
    assert one["bootstrap_values"] is None
    assert torch.equal(two["bootstrap_values"], torch.tensor([[50.0], [51.0], [52.0]]) * weight)


def test_a_policy_without_a_critic_says_no_values(actor):
    (answer,) = answers(actor(add_value_head=False), asked(1, 2, final=observation(5, 2)))
    assert answer["prev_values"] is None
    assert answer["bootstrap_values"] is None


def test_answers_name_the_version_whose_weights_made_them(actor):
    worker = actor()
    asyncio.run(worker.load(4, [nullcontext({"weight": torch.tensor([2.0])})]))
    (answer,) = answers(worker, asked(1, 2))
    assert answer["version"] == 4
    assert answer["prev_values"].flatten().tolist() == [20.0, 22.0]


def test_ranks_draw_the_same_weights_and_then_apart(actor):
    weights, drawn = [], []
    for rank in (0, 1, 0):
        worker = actor(rank=rank)
        weights.append(worker.policy_module().weight.item())
        drawn.append(float(torch.rand(1)))
    assert weights[0] == weights[1] == weights[2]
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_checkpoint_that_does_not_fit_is_named(tmp_path, monkeypatch):
    section = SimpleNamespace(add_value_head=True)
    monkeypatch.setattr(policy, "load_class", lambda *_: lambda cfg, dtype: Reckoner(section))
    torch.save({"other": torch.zeros(1)}, tmp_path / "policy.pt")
    with pytest.raises(ValueError, match=r"policy\.pt' does not fit vla\.model"):
        policy.build_policy({"model_type": "x"}, ckpt_path=str(tmp_path / "policy.pt"), seed=0)
    with pytest.raises(ValueError, match="is no file"):
        policy.build_policy({"model_type": "x"}, ckpt_path=str(tmp_path / "none.pt"), seed=0)


def test_what_stands_beside_verl_is_found_by_entry_points():
    from rlinf_async.entry_points import find

    found: EntryPoint = find("rlinf_async.verl_workers", "inference")
    assert found.load() is inference_actor.InferenceActor


@pytest.mark.parametrize("deterministic", [True, False])
def test_sampling_begins_anew_with_every_version_in_a_deterministic_run(actor, deterministic):
    asynchrony = AsyncConfig.from_mapping({"mode": "train", "deterministic": deterministic})
    ranks = [actor(rank=rank, asynchrony=asynchrony) for rank in range(2)]
    seeds = [rank.sampling_seed for rank in ranks]
    assert seeds == ([8, 9] if deterministic else [None, None])


def test_scores_are_asked_for_one_request_at_a_time_and_bear_the_version(actor):
    worker = actor()
    asyncio.run(worker.load(3, [nullcontext({"weight": torch.tensor([2.0])})]))
    samples = [{"forward_inputs": {"states": torch.tensor([[1.0], [5.0]]) * shard}} for shard in (1, 2)]
    batch = [
        Pending(request=request(shard, 2, payload=seal(payload), mode="score"))
        for shard, payload in enumerate(
            [{"samples": one, "values": bool(at)} for at, one in enumerate(samples)]
        )
    ]
    without, valued = answers(worker, *batch)
    assert (without["version"], valued["version"]) == (3, 3)
    assert without["scores"].keys() == {"logprobs"}
    assert without["scores"]["logprobs"].flatten().tolist() == [-1.0, -5.0]
    assert valued["scores"]["values"].flatten().tolist() == [4.0, 20.0]


def test_shards_that_show_different_fields_are_seen_in_batches_of_their_own(actor):
    worker = actor(buckets=(4, 8))

    def wider(shard, size):
        pending = asked(shard, size)
        seen = {**observation(shard, size), "wrist_images": torch.zeros(size, 2, 2)}
        return replace(
            pending, request=replace(pending.request, payload=seal({"obs": seen, "final_obs": None}))
        )

    found = answers(worker, asked(1, 2), wider(2, 3), asked(3, 2), wider(4, 1))
    assert worker.policy_module().sizes == [4, 4]
    for shard, answer in zip((1, 2, 3, 4), found, strict=True):
        assert answer["forward_inputs"]["states"][0].item() == 10 * shard
        assert answer["actions"][0, 0, 0].item() == 10 * shard
