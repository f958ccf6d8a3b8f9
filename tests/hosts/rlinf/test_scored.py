"""`explain` says what weights are of where a model scores a part of an action."""

import pytest

from rlinf_async.hosts.rlinf.models import scored_by


def said(kind, **model):
    return scored_by({"actor": {"model": {"model_type": kind, **model}}})


@pytest.mark.parametrize(
    ("kind", "model", "steps"),
    [
        ("openpi", {"num_steps": 4, "openpi": {"num_steps": 5}}, "5"),
        ("openpi", {"num_steps": 4, "openpi": {"noise_method": "flow_sde"}}, "4"),
        ("dexbotic_pi", {"dexbotic": {}, "num_steps": 4}, "4"),
        ("gr00t", {"denoising_steps": 4, "rl_head_config": {"joint_logprob": False}}, "4"),
        ("gr00t", {"denoising_steps": None}, "K"),
        ("starvla", {"starvla": {"framework_name": "QwenGR00T"}}, "K"),
    ],
)
def test_one_step_of_so_many_as_the_config_names(kind, model, steps):
    expected = f"of one of {steps} denoise steps, which sees about 1 / {steps} of a lag"
    assert said(kind, **model) == expected


@pytest.mark.parametrize(
    ("kind", "model", "power"),
    [
        ("openpi", {"openpi": {"num_steps": 4, "joint_logprob": True}}, "5"),
        ("gr00t", {"denoising_steps": 4, "rl_head_config": {"joint_logprob": True}}, "5"),
        ("gr00t", {"rl_head_config": {"joint_logprob": True}}, "(K + 1)"),
    ],
)
def test_a_mean_over_all_steps(kind, model, power):
    said_of = said(kind, **model)
    assert said_of.startswith("of the mean over ")
    assert said_of.endswith(f"sees 1 / {power} of a lag")


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("mlp_policy", {}),
        ("openvla_oft", {"num_steps": 4}),
        ("starvla", {"starvla": {"framework_name": "QwenOFT"}}),
        ("openpi", {"openpi": {"num_steps": 1}}),
        ("somebody_elses", {}),
    ],
)
def test_nothing_is_said_where_the_action_is_scored_or_nobody_knows(kind, model):
    assert said(kind, **model) == ""
