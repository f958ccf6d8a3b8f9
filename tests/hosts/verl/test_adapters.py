"""Adapters in the place of a policy's weights: veRL's keys, the learner's engine, and inference beside it."""

import pytest
import torch

from rlinf_async.hosts.verl.config import read
from rlinf_async.hosts.verl.explain import explain
from rlinf_async.hosts.verl.host import AssumedCluster, VerlHost
from rlinf_async.hosts.workers.policy import add_adapters, make_policy
from rlinf_async.hosts.workers.settings import Adapters
from rlinf_async.lab.demo.policies.mlp import build_gaussian_mlp
from tests.hosts.verl.configs import composed
from tests.hosts.verl.engines import config, learner, rollout, settings, train, weights

SECTION = {
    "model_type": "gaussian_mlp",
    "obs_dim": 5,
    "num_action_chunks": 2,
    "action_dim": 3,
    "add_value_head": True,
}
LAYERS = {"backbone.0", "backbone.2", "backbone.4", "actor_mean"}
ADAPTERS = Adapters(rank=4, alpha=8)
MODEL = "actor_rollout_ref.model"


def adapted(**changes):
    torch.manual_seed(0)
    policy = build_gaussian_mlp(SECTION, None)
    add_adapters(policy, Adapters(**{"rank": 4, "alpha": 8} | changes))
    return policy


def layers_of(policy):
    return {name.partition(".lora_")[0] for name in policy.state_dict() if ".lora_" in name}


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({}, LAYERS),
        ({"targets": ["actor_mean"]}, {"actor_mean"}),
        ({"excluded": ["actor_mean", "4"]}, {"backbone.0", "backbone.2"}),
        ({"excluded": r"backbone\.\d"}, {"actor_mean"}),
    ],
)
def test_the_layers_that_are_asked_for_have_adapters_and_the_value_head_none(changes, layers):
    assert layers_of(adapted(**changes)) == layers


def test_fresh_adapters_change_nothing_and_all_else_is_frozen():
    policy = adapted()
    torch.manual_seed(0)
    plain = build_gaussian_mlp(SECTION, None)
    seen = {"states": torch.randn(3, 5), "action": torch.randn(3, 6)}
    for name, of_plain in plain(forward_inputs=seen).items():
        torch.testing.assert_close(policy(forward_inputs=seen)[name], of_plain, rtol=0, atol=0)
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert all(".lora_" in name or name.startswith("value_head.") for name in trained)
    assert any(name.startswith("value_head.") for name in trained)


def test_a_policy_without_the_layers_that_are_asked_for_is_refused():
    with pytest.raises(ValueError, match="No modules were targeted"):
        adapted(targets=["q_proj"])


def test_training_changes_adapters_and_value_head_alone_and_inference_scores_by_them():
    of = settings(adapters=ADAPTERS)
    worker = learner(of)
    before = weights(worker)
    train(worker, of, [rollout(of)])
    after = weights(worker)
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(".lora_" in name or name.startswith("value_head.") for name in changed)
    assert any(".lora_" in name for name in changed)

    acting = make_policy(config().vla.model, None, ckpt_path=None, seed=of.seed, adapters=ADAPTERS)
    # What is not trained is never sent: it is of the same seed.
    acting.load_state_dict({name: after[name] for name in changed}, strict=False)
    inputs = {"states": torch.randn(3, 5), "action": torch.randn(3, 6)}
    scores = worker.engine.scores(inputs, values=True)
    with torch.no_grad():
        again = acting(forward_inputs=inputs)
    for name in ("logprobs", "values"):
        torch.testing.assert_close(scores[name], again[name])


def test_verls_keys_ask_for_adapters_and_explain_says_them():
    asked = (f"{MODEL}.lora_rank=4", f"{MODEL}.lora_alpha=8", f"{MODEL}.target_modules=[actor_mean]")
    assert read(composed()).adapters is None
    assert read(composed(*asked)).adapters == Adapters(rank=4, alpha=8, targets=["actor_mean"])
    assert explain(composed(*asked))["adapters"]["targets"] == ["actor_mean"]
    (learner_gpu, _) = VerlHost().explain(composed(*asked), AssumedCluster(gpus=2))["memory"]["per_gpu"]
    assert learner_gpu["bytes"]["optimizer"] == 0
