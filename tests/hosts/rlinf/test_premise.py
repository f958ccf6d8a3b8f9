"""Passes in which a learner scores actions that were taken, and the check of the first batch by them."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from rlinf_async.hosts.rlinf.learner import forward
from tests.hosts.rlinf.learners import run_cases
from tests.hosts.rlinf.passes import compare, judge, recompute
from tests.hosts.rlinf.synthetic import Case

STEPS, WIDTH, CHUNKS, DIM = 3, 4, 5, 7


class Policy(torch.nn.Module):
    """Scores what it was given as it was stored, but for `shift`."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, forward_inputs, **kwargs):
        logprobs, values = forward_inputs["logprobs"], forward_inputs["values"]
        return {"logprobs": logprobs + self.shift, "values": values.flatten()}


def actor(model, precision="fp32", model_type="mlp_policy"):
    cfg = OmegaConf.create({"actor": {"model": {"model_type": model_type, "precision": precision}}})
    return SimpleNamespace(cfg=cfg, model=model, device="cpu", amp_context=nullcontext())


class Dropping(torch.nn.Module):
    """A policy with dropout, which is a policy of its own in every pass while it trains."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

    def forward(self, forward_inputs, **_):
        return {"logprobs": self.layers(forward_inputs["states"])}


def test_actions_are_scored_without_dropout_as_rlinfs_own_anchor_is_and_training_has_it():
    model, states = Dropping().train(), torch.randn(4, 3)
    part = {"forward_inputs": {"states": states}, "prev_logprobs": torch.zeros(4, 2)}
    first, second = forward(actor(model), [part, part], values=False)
    assert model.training
    model.eval()
    expected = model.layers(states)
    torch.testing.assert_close(first["logprobs"], expected)
    torch.testing.assert_close(second["logprobs"], expected)
    assert not first["logprobs"].requires_grad


def rollout():
    draw = torch.Generator().manual_seed(1)
    logprobs = torch.randn(STEPS, WIDTH, CHUNKS, DIM, generator=draw)
    values = torch.randn(STEPS + 1, WIDTH, 1, generator=draw)
    return {
        "forward_inputs": {"logprobs": logprobs, "values": values[:-1]},
        "prev_logprobs": logprobs,
        "prev_values": values,
        "versions": torch.full((*logprobs.shape[:2], 1), 0.0),
    }


@pytest.mark.parametrize("precision", ["bf16", None])
def test_16_bits_round_more(precision):
    said, learner = [], actor(Policy(shift=0.05), precision)
    premise = judge(compare(learner, rollout(), 0, most=5, values=True), learner.cfg, said.append)
    assert premise.logprobs == pytest.approx(0.05)
    assert said == []


class Selecting(torch.nn.Module):
    """As RLinf's GR00T: stores all denoise steps, scores the one that was drawn, selects what was stored."""

    def forward(self, forward_inputs, prev_logprobs, **kwargs):
        rows, drawn = torch.arange(len(prev_logprobs)), forward_inputs["denoise_inds"][:, 0]
        values = forward_inputs["denoise_inds"][:, 0].float()
        return {
            "logprobs": prev_logprobs[rows, drawn] + 1,
            "prev_logprobs": prev_logprobs[rows, drawn],
            "values": values,
        }


def test_models_that_store_every_denoise_step_are_anchored_at_the_one_drawn():
    draw = torch.Generator().manual_seed(2)
    stored = torch.randn(STEPS, WIDTH, 4, CHUNKS, DIM, generator=draw)
    inds = torch.randint(0, 4, (STEPS, WIDTH, 1), generator=draw).expand(-1, -1, 4)
    values = torch.zeros(STEPS + 1, WIDTH, 1)
    given = {"forward_inputs": {"denoise_inds": inds}, "prev_logprobs": stored, "prev_values": values}
    tail = {"denoise_inds": torch.full((WIDTH, 4), 2)}
    recompute(actor(Selecting(), model_type="gr00t"), given, tail, micro_batch_size=5, values=True)
    expected = torch.stack(
        [torch.stack([stored[t, b, inds[t, b, 0]] for b in range(WIDTH)]) for t in range(STEPS)]
    )
    assert torch.equal(given["acted_logprobs"], expected)
    assert torch.equal(given["proximal_logprobs"], expected + 1)
    assert torch.equal(given["prev_values"][-1], torch.full((WIDTH, 1), 2.0))


def test_rlinfs_actor_gives_back_what_it_stored_and_a_made_up_critic_is_noticed(tmp_path):
    """In `made up`, nobody's critic gave the values that are stored."""
    train = {"overrides": ("async.mode=train",), "examined": True}
    cases = [Case(name="its own", on_policy=True, **train), Case(name="made up", **train)]
    found = run_cases(1, cases, tmp_path)
    (own,), (made_up,) = (found[case.name]["ours"].metrics for case in cases)
    assert own["train/premise/logprobs"] <= 1e-6
    assert own["train/premise/values"] <= 1e-6
    assert made_up["train/premise/values"] > 0.1
    assert 0.01 < made_up["train/premise/logprobs"] < 1
