"""What a policy of ours says of its size without being built is true."""

import pytest

from rlinf_async.lab.demo.policies import mlp_settings, smol_vla_settings
from rlinf_async.lab.demo.policies.mlp import build_gaussian_mlp
from rlinf_async.lab.demo.policies.smol_vla_policy import build_smol_vla

MLP = {"model_type": "gaussian_mlp", "obs_dim": 6, "action_dim": 3}
VLA = {"model_type": "smol_vla", "state_dim": 6, "action_dim": 3, "num_action_chunks": 4}
OTHER_VLA = {
    "image_size": 32,
    "patch_size": 4,
    "instruction_length": 9,
    "vision_width": 48,
    "vision_layers": 3,
    "text_width": 64,
    "text_layers": 1,
    "heads": 2,
}
POLICIES = {
    "mlp": (build_gaussian_mlp, mlp_settings.parameters, MLP, {}),
    "mlp of chunks without a critic": (
        build_gaussian_mlp,
        mlp_settings.parameters,
        MLP,
        {"num_action_chunks": 5, "add_value_head": False},
    ),
    "vla": (build_smol_vla, smol_vla_settings.parameters, VLA, {}),
    "another vla": (build_smol_vla, smol_vla_settings.parameters, VLA, OTHER_VLA),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_has_as_many_parameters_as_it_says(name):
    build, parameters, section, changes = POLICIES[name]
    built = build({**section, **changes}, None)
    assert parameters({**section, **changes}) == sum(each.numel() for each in built.parameters())


WRONG = {
    ("mlp", "obs_dim", "many"): "obs_dim must be a whole number, got many",
    ("mlp", "obs_dim", True): "obs_dim must be a whole number, got True",
    ("mlp", "action_dim", 2.0): "action_dim must be a whole number, got 2.0",
    ("mlp", "action_dim", 0): "action_dim must be at least 1, got 0",
    ("mlp", "num_action_chunks", 10**30): "num_action_chunks must be at most 2147483647",
    ("mlp", "add_value_head", "yes"): "add_value_head must be true or false, got yes",
    ("vla", "heads", None): "heads must be a whole number, got None",
    ("vla", "text_layers", -1): "text_layers must be at least 1, got -1",
    ("vla", "log_std", float("nan")): "log_std must be a finite number, got nan",
}


@pytest.mark.parametrize(("name", "field", "value"), WRONG)
def test_a_size_that_is_none_is_named_and_not_built_either(name, field, value):
    build, parameters, section, _ = POLICIES[name]
    changed = {**section, field: value}
    for ask in (parameters, lambda section: build(section, None)):
        with pytest.raises(ValueError, match=WRONG[name, field, value]):
            ask(changed)


def test_without_what_it_is_built_of_a_vla_has_no_size(monkeypatch):
    monkeypatch.setattr(smol_vla_settings, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="transformers"):
        smol_vla_settings.parameters(VLA)
