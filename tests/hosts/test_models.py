import pytest
import torch

pytest.importorskip("rlinf", reason="RLinf is not installed")

from omegaconf import OmegaConf
from rlinf.config import EMBODIED_MODEL, SupportedModel
from rlinf.models import get_model
from rlinf.models.embodiment.mlp_policy.mlp_policy import MLPPolicy
from torch.distributed.fsdp import fully_shard

from rlinf_async.hosts.rlinf.worker_process import register_models
from rlinf_async.lab.demo.policies.smol_vla_policy import build_smol_vla

MODEL = OmegaConf.create(
    {
        "model_type": "smol_vla",
        "precision": "fp32",
        "is_lora": False,
        "state_dim": 6,
        "action_dim": 3,
        "num_action_chunks": 4,
        "image_size": 32,
        "add_value_head": True,
    }
)


@pytest.fixture
def policy():
    torch.manual_seed(0)
    return build_smol_vla(MODEL, torch.float32)


def observation(batch):
    return {
        "main_images": torch.randint(0, 256, (batch, 32, 32, 3), dtype=torch.uint8),
        "states": torch.randn(batch, 6),
        "task_descriptions": ["press"] * batch,
        "wrist_images": None,
    }


def test_rlinf_builds_the_registered_model_by_name():
    register_models()
    register_models()
    assert SupportedModel("smol_vla") in EMBODIED_MODEL
    assert get_model(MODEL).settings.num_action_chunks == 4


def test_stored_actions_get_the_log_probabilities_and_values_they_were_sampled_with(policy):
    actions, result = policy.predict_action_batch(env_obs=observation(5))
    scores = policy(
        forward_inputs=result["forward_inputs"],
        compute_logprobs=True,
        compute_entropy=True,
        compute_values=True,
        use_cache=False,
    )
    assert actions.shape == scores["logprobs"].shape == scores["entropy"].shape == (5, 4, 3)
    assert torch.allclose(scores["logprobs"], result["prev_logprobs"], atol=1e-5)
    assert torch.allclose(scores["values"], result["prev_values"], atol=1e-5)
    assert scores["logprobs"].requires_grad
    assert not result["prev_logprobs"].requires_grad


def test_results_have_the_shapes_of_rlinfs_own_policy(policy):
    stock = MLPPolicy(6, 12, num_action_chunks=1, add_value_head=True, add_q_head=False)
    stock.num_action_chunks, stock.action_dim = 4, 3
    theirs, their_result = stock.predict_action_batch(env_obs=observation(5))
    ours, our_result = policy.predict_action_batch(env_obs=observation(5))
    assert ours.shape == theirs.shape
    assert our_result["prev_values"].shape == their_result["prev_values"].shape
    assert our_result["prev_logprobs"].numel() == their_result["prev_logprobs"].numel()
    assert our_result["forward_inputs"]["action"].shape == their_result["forward_inputs"]["action"].shape
    assert all(isinstance(value, torch.Tensor) for value in our_result["forward_inputs"].values())
    assert hasattr(policy, "value_head")


@pytest.mark.parametrize("evaluation", [{"mode": "eval"}, {"do_sample": False, "temperature": 0.0}])
def test_evaluation_takes_the_mean_action(policy, evaluation):
    seen = observation(2)
    first, _ = policy.predict_action_batch(env_obs=seen, **evaluation)
    again, _ = policy.predict_action_batch(env_obs=seen, **evaluation)
    sampled, _ = policy.predict_action_batch(env_obs=seen)
    assert torch.equal(first, again)
    assert not torch.equal(first, sampled)


def test_observations_without_pictures_are_refused(policy):
    with pytest.raises(ValueError, match="image_size"):
        policy.predict_action_batch(env_obs={"main_images": None, "states": torch.zeros(1, 6)})


def test_a_gradient_step_works_on_the_unsharded_names_that_weight_sync_uses(policy):
    names = [name for name, _ in policy.named_parameters()]
    state = policy.state_dict()
    assert set(names) <= set(state)
    copy = build_smol_vla(MODEL, torch.float32)
    copy.load_state_dict(state)
    seen = observation(2)
    ours, _ = policy.predict_action_batch(env_obs=seen, mode="eval")
    theirs, _ = copy.predict_action_batch(env_obs=seen, mode="eval")
    assert torch.equal(ours, theirs)
    assert [name for name in names if "value_head" in name]


def test_fsdp2_trains_it_as_one_unit(policy, tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        _, result = policy.predict_action_batch(env_obs=observation(2))
        sharded = fully_shard(policy, mesh=mesh)
        scores = sharded(forward_inputs=result["forward_inputs"])
        assert torch.allclose(scores["logprobs"], result["prev_logprobs"], atol=1e-5)
        (scores["logprobs"].sum() + scores["values"].sum()).backward()
        assert all(tensor.grad is not None for tensor in sharded.parameters())
    finally:
        torch.distributed.destroy_process_group()
