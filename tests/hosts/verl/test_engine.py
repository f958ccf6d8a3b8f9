"""veRL's engine around a policy: its units, learning rates, weights and checkpoints."""

import json
from types import SimpleNamespace

import pytest
import torch

from rlinf_async.core.failures import PolicyFailure
from rlinf_async.hosts.kit.sharded import TrainedShards
from rlinf_async.hosts.verl.engine import PolicyEngine, dress
from rlinf_async.lab.demo.policies.mlp import build_gaussian_mlp
from tests.hosts.verl.engines import learner, rollout, same, settings, train, weights

SECTION = {"model_type": "gaussian_mlp", "obs_dim": 5, "num_action_chunks": 2, "action_dim": 3}
WRAP = "actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"
COSINE = "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine"


def test_the_engine_holds_the_policy_of_the_entry_point_with_the_weights_of_the_seed():
    found = weights(learner(settings()))
    torch.manual_seed(0)
    assert same(found, build_gaussian_mlp(SECTION, None).state_dict())
    assert same(found, weights(learner(settings())))
    assert not same(found, weights(learner(settings(seed=1))))


def test_the_value_head_has_a_learning_rate_of_its_own():
    groups = learner(settings()).engine.optimizer.param_groups
    assert [group["lr"] for group in groups] == [1e-3, 3e-4]
    assert [len(group["params"]) for group in groups] == [9, 7]
    plain = learner(settings(), "++vla.model.add_value_head=false").engine.optimizer.param_groups
    assert [group["lr"] for group in plain] == [1e-3]


def test_training_starts_from_the_state_dict_that_is_given(tmp_path):
    policy = build_gaussian_mlp(SECTION, None)
    torch.save(policy.state_dict(), tmp_path / "policy.pt")
    found = weights(learner(settings(), f"++vla.ckpt_path={tmp_path}/policy.pt"))
    assert same(found, policy.state_dict())
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(PolicyFailure, match=r"on learner rank 0: ValueError: .*ckpt_path.*does not fit"):
        learner(settings(), f"++vla.ckpt_path={tmp_path}/other.pt")


def test_a_resumed_learner_is_the_one_that_was_saved_to_the_last_bit(tmp_path):
    of = settings()
    worker = learner(of, COSINE)
    train(worker, of, [rollout(of)])
    worker.save_checkpoint(str(tmp_path / "actor"), None, 1, None)
    drawn = torch.rand(4)
    train(worker, of, [rollout(of, seed=1)], first=1)

    resumed = learner(of, COSINE)
    resumed.load_checkpoint(str(tmp_path / "actor"))
    assert torch.equal(torch.rand(4), drawn)
    train(resumed, of, [rollout(of, seed=1)], first=1)

    assert same(weights(resumed), weights(worker))
    states = [one.engine.optimizer.state_dict()["state"] for one in (worker, resumed)]
    for index, state in states[0].items():
        found = {name: held.full_tensor() for name, held in states[1][index].items() if held.ndim}
        assert same(found, {name: held.full_tensor() for name, held in state.items() if held.ndim})
    assert resumed.engine.lr_scheduler.state_dict() == worker.engine.lr_scheduler.state_dict()


def test_a_checkpoint_says_what_the_policy_was_built_from(tmp_path):
    learner(settings()).save_checkpoint(str(tmp_path / "actor"), None, 1, None)
    written = json.loads((tmp_path / "actor" / "huggingface" / "config.json").read_text())
    assert written["model_type"] == "gaussian_mlp"


def test_layers_to_wrap_must_be_named_for_a_policy_that_does_not_name_them():
    with pytest.raises(ValueError, match=r"transformer_layer_cls_to_wrap must name .* Linear"):
        learner(settings(), f"++{WRAP}=null")


def test_a_policys_own_attribute_config_must_be_one_that_verl_can_read():
    policy = build_gaussian_mlp(SECTION, None)
    policy.config = {"mine": 1}
    with pytest.raises(ValueError, match=r"GaussianMLP\.config is a dict"):
        dress(policy, SECTION)


def test_weights_that_were_written_to_shards_are_those_that_the_next_pass_sees():
    """A pass without gradients leaves parameters gathered, which would hide what is written."""
    engine = learner(settings()).engine
    inputs = {"states": torch.ones(2, 5), "action": torch.zeros(2, 6)}
    with torch.no_grad():
        before = engine.scores(inputs, values=True)["values"].clone()
        for shard in TrainedShards(engine.module)():
            shard.mul_(0.0)
        after = engine.scores(inputs, values=True)["values"]
    assert before.abs().max() > 0
    assert after.abs().max() == 0


def test_actions_are_scored_without_dropout_and_training_has_it():
    dropout = torch.nn.Dropout(0.5)
    engine = SimpleNamespace(
        module=dropout.train(),
        scores=lambda inputs, values: {"logprobs": dropout(inputs["states"])},
    )
    part = {"states": torch.ones(4, 8)}
    first, second = PolicyEngine.passes(engine, [{"forward_inputs": part}] * 2, values=False)
    assert torch.equal(first["logprobs"], part["states"])
    assert torch.equal(second["logprobs"], part["states"])
    assert dropout.training
