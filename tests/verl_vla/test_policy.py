"""verl-vla's GaussianActor acts and scores as its own class does."""

import ast
import json
from pathlib import Path

import pytest

from tests.verl_vla.conftest import without_lerobot

if why := without_lerobot():
    pytest.skip(why, allow_module_level=True)

import torch
import verl_vla
from verl_vla.models.gaussian_actor.modeling import TanhMultivariateNormalDiag

from rlinf_async.hosts.policy_contract import checked_decision
from rlinf_async.hosts.verl.verl_vla.policy import build

SECTION = {
    "model_type": "verl_vla",
    "action_dim": 7,
    "image_size": 64,
    "hidden_dims": [16, 16],
    "config": {"latent_dim": 8, "image_encoder_hidden_dim": 4, "freeze_vision_encoder": False},
}


def seen(size=3):
    draw = torch.Generator().manual_seed(5)
    pictures = torch.randint(0, 255, (2, size, 64, 64, 3), dtype=torch.uint8, generator=draw)
    states = torch.randn(size, 8, generator=draw)
    return {"states": states, "main_images": pictures[0], "wrist_images": pictures[1]}


@pytest.fixture
def policy():
    torch.manual_seed(1)
    return build(SECTION, None)


def test_its_log_probability_is_verl_vlas(policy):
    actions, result = checked_decision(policy.predict_action_batch(seen()), 3, scored=True)
    drawn = result["forward_inputs"]["drawn"]
    features = policy.model.sac_forward_state_features(_data(seen()), None)
    _, _, mean, std = policy.model.policy.actor(features)
    theirs = TanhMultivariateNormalDiag(loc=mean, scale_diag=std)
    squashed = theirs.transforms[0](drawn)
    torch.testing.assert_close(actions[:, 0], squashed)
    ours = result["prev_logprobs"].sum(dim=(1, 2))
    torch.testing.assert_close(ours, theirs.log_prob(squashed).detach(), atol=1e-5, rtol=1e-5)


def test_the_learner_scores_as_inference_did_though_it_trains(policy):
    policy.train()
    _, result = policy.predict_action_batch(seen())
    scores = policy(forward_inputs=result["forward_inputs"])
    torch.testing.assert_close(scores["logprobs"].detach(), result["prev_logprobs"])
    torch.testing.assert_close(scores["values"].detach(), result["prev_values"])


def test_evaluation_takes_the_mode(policy):
    first, second = (policy.predict_action_batch(seen(), mode="eval")[0] for _ in range(2))
    torch.testing.assert_close(first, second)
    assert not torch.equal(first, policy.predict_action_batch(seen())[0])


def test_losses_of_actions_and_values_reach_every_weight(policy):
    _, result = policy.predict_action_batch(seen())
    scores = policy(forward_inputs=result["forward_inputs"])
    (scores["logprobs"].sum() + scores["values"].sum()).backward()
    assert [name for name, each in policy.named_parameters() if each.grad is None] == []


def test_an_artifact_of_verl_vlas_acts_as_what_was_saved(policy, tmp_path):
    policy.model.export_policy(tmp_path)
    again = build({"model_type": "verl_vla", "action_dim": 7, "model_path": str(tmp_path)}, None)
    actions = [each.predict_action_batch(seen(), mode="eval")[0] for each in (policy, again)]
    torch.testing.assert_close(*actions)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_action_chunks": 5}, "decides on one action at a time; use 1"),
        ({"model_path": "/dev/null/nowhere"}, "holds no config.json of verl-vla"),
        ({"config": {"num_discrete_actions": 3}}, "a discrete action has no log-probability"),
    ],
)
def test_what_it_cannot_be_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        build({**SECTION, **changes}, None)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("PI0Policy", ", which draws the steps of an action anew wherever it gives a log-probability"),
        ("act", ""),
    ],
)
def test_an_artifact_of_another_architecture_is_refused_by_name_and_with_the_reason(tmp_path, kind, why):
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": kind}))
    with pytest.raises(ValueError, match=f"holds a {kind} of verl-vla{why}; use a gaussian_actor"):
        build({"model_type": "verl_vla", "action_dim": 7, "model_path": str(tmp_path)}, None)


def test_what_gives_log_probabilities_of_pi05_takes_no_steps_and_gives_none():
    """Or they could be stored, and scored again."""
    source = Path(verl_vla.__file__).parent / "models" / "pi0_torch" / "trainable_model.py"
    (model,) = [
        node
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "PI0TrainableModel"
    ]
    methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
    scored = [name for name, node in methods.items() if "_gaussian_log_prob" in ast.unparse(node)]
    assert scored == ["_gaussian_log_prob", "_sample_actions_flow_sde"]
    sampler = methods["_sample_actions_flow_sde"]
    assert [each.arg for each in sampler.args.args] == [
        "self",
        "state_features",
        "initial_noise",
        "noise_scale",
        "requires_grad",
        "return_log_prob",
        "task_ids",
    ]
    (given,) = [ast.unparse(node) for node in ast.walk(sampler) if isinstance(node, ast.Return)]
    assert given == "return (x_t, log_probs)"


def _data(observation):
    from verl import DataProto

    names = {
        "observation.state": "states",
        "observation.images.image": "main_images",
        "observation.images.wrist_image": "wrist_images",
    }
    return DataProto.from_dict(tensors={theirs: observation[ours] for theirs, ours in names.items()})
