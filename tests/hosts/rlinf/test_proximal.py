"""Passes without gradients, in which a learner scores actions that were taken."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("rlinf", reason="RLinf is not installed")

import torch
from omegaconf import OmegaConf

from rlinf_async.hosts.rlinf.proximal import forward


class Dropping(torch.nn.Module):
    """A policy with dropout, which is a policy of its own in every pass while it trains."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

    def forward(self, forward_inputs, **_):
        return {"logprobs": self.layers(forward_inputs["states"])}


def test_actions_are_scored_without_dropout_as_rlinfs_own_anchor_is_and_training_has_it():
    model = Dropping().train()
    actor = SimpleNamespace(
        cfg=OmegaConf.create({"actor": {"model": {"model_type": "mlp_policy"}}}),
        model=model,
        device="cpu",
        amp_context=nullcontext(),
    )
    states = torch.randn(4, 3)
    part = {"forward_inputs": {"states": states}, "prev_logprobs": torch.zeros(4, 2)}
    first, second = forward(actor, [part, part], values=False)
    assert model.training
    model.eval()
    expected = model.layers(states)
    torch.testing.assert_close(first["logprobs"], expected)
    torch.testing.assert_close(second["logprobs"], expected)
    assert not first["logprobs"].requires_grad
