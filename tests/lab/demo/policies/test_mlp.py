import pytest
import torch

from rlinf_async.lab.demo.policies.mlp import GaussianMLP, build_gaussian_mlp
from rlinf_async.lab.demo.policies.mlp_settings import MLPSettings

MODEL = {"model_type": "gaussian_mlp", "obs_dim": 6, "action_dim": 3, "num_action_chunks": 1}


def policy(**changes):
    torch.manual_seed(0)
    return build_gaussian_mlp({**MODEL, **changes}, torch.float32)


def rlinfs_policy():
    module = pytest.importorskip(
        "rlinf.models.embodiment.mlp_policy.mlp_policy", reason="RLinf is not installed"
    )
    return module.MLPPolicy(6, 3, num_action_chunks=1, add_value_head=True, add_q_head=False)


def test_equal_weights_act_and_score_as_rlinfs_policy_does():
    ours, theirs = policy(), rlinfs_policy()
    theirs.load_state_dict(ours.state_dict())
    seen = {"states": torch.randn(5, 6)}
    actions, result = ours.predict_action_batch(seen, mode="eval")
    their_actions, their_result = theirs.predict_action_batch(seen, mode="eval")
    assert torch.equal(actions, their_actions)
    assert torch.equal(result["prev_values"], their_result["prev_values"])
    inputs = {"states": seen["states"], "action": torch.randn(5, 3)}
    scores, their_scores = ours(forward_inputs=inputs), theirs(forward_inputs=inputs)
    assert scores.keys() == their_scores.keys()
    for name, value in scores.items():
        assert torch.equal(value.flatten(1), their_scores[name])


def test_weights_start_as_rlinfs_do():
    ours, theirs = policy().state_dict(), rlinfs_policy().state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.shape == theirs[name].shape
        assert tensor.norm() == pytest.approx(float(theirs[name].norm()), rel=0.25), name


def test_log_probabilities_of_a_chunk_are_found_again():
    chunked = policy(num_action_chunks=4)
    actions, result = chunked.predict_action_batch({"states": torch.randn(5, 6)})
    scores = chunked(forward_inputs=result["forward_inputs"])
    assert actions.shape == scores["logprobs"].shape == scores["entropy"].shape == (5, 4, 3)
    assert torch.allclose(scores["logprobs"], result["prev_logprobs"], atol=1e-5)
    assert torch.allclose(scores["values"], result["prev_values"], atol=1e-6)


def test_without_a_value_head_there_are_no_values():
    actor = policy(add_value_head=False)
    _, result = actor.predict_action_batch({"states": torch.randn(2, 6)})
    assert "prev_values" not in result
    assert "values" not in actor(forward_inputs=result["forward_inputs"])
    assert not [name for name, _ in actor.named_parameters() if "value_head" in name]


def test_another_pass_than_scoring_is_refused():
    with pytest.raises(NotImplementedError, match="forward_type=sft: GaussianMLP"):
        policy()(forward_type="sft", data={})


@pytest.mark.parametrize("name", ["obs_dim", "action_dim", "num_action_chunks"])
def test_impossible_sizes_are_named(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        MLPSettings(**{"obs_dim": 1, "action_dim": 1, name: 0})


def test_a_policy_is_one_module_that_fsdp2_may_subclass():
    assert type(GaussianMLP) is type
