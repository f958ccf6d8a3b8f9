"""What samples of a forward pass of RLinf's models share, and what of an action their weights are of."""

from pathlib import Path

import pytest

from rlinf_async.config import AsyncConfig
from rlinf_async.entry_points import OWN_MODELS
from rlinf_async.hosts.exactness import own_chance, rollout_exactness
from rlinf_async.hosts.rlinf.models import (
    ONE_STEP_MODELS,
    PER_SAMPLE_MODELS,
    SHARED_STEP,
    scored_by,
    shared_chance,
)
from tests.checkouts import TREES, package

FULL = AsyncConfig.from_mapping({"mode": "full"})
DRAWS = ("randint", "denoise_inds")
"""What is in the sources of a model that draws one denoise step for a whole pass."""


def model(kind, **more):
    return {"actor": {"model": {"model_type": kind, **more}}}


@pytest.mark.parametrize("kind", ["dreamzero", "molmoact2", "cma", "somebody_elses", "starvla"])
def test_a_model_that_nobody_has_looked_at_is_not_examined_and_never_exact(kind):
    assert shared_chance(model(kind)) is None
    said = rollout_exactness(FULL, model=kind, shares=None)
    assert said.startswith("not examined (")
    assert kind in said


@pytest.mark.parametrize(
    ("kind", "more", "shares"),
    [
        ("openpi_rlinf", {}, SHARED_STEP),
        ("evo1", {}, SHARED_STEP),
        ("evo1", {"evo1": {"joint_logprob": True}}, ""),
        ("gr00t", {"joint_logprob": False}, SHARED_STEP),
        ("openpi", {"openpi": {"config_name": "pi05_libero"}}, SHARED_STEP),
        ("openpi", {"openpi": {"config_name": "pi0_fast_libero"}}, None),
        ("starvla", {"starvla": {"framework_name": "QwenGR00T"}}, SHARED_STEP),
        ("starvla", {"starvla": {"framework_name": "QwenPI"}}, SHARED_STEP),
        ("starvla", {"starvla": {"framework_name": "QwenOFT"}}, ""),
        ("starvla", {"starvla": {"framework_name": "QwenFAST"}}, None),
        ("mlp_policy", {}, ""),
    ],
)
def test_what_samples_of_a_pass_share_is_that_of_the_models_head(kind, more, shares):
    assert shared_chance(model(kind, **more)) == shares


def test_policies_of_other_packages_are_not_examined():
    assert own_chance("gaussian_mlp") == ""
    assert own_chance("somebody_elses") is None
    assert set(OWN_MODELS) <= PER_SAMPLE_MODELS


@pytest.mark.parametrize("tree", TREES)
def test_every_model_of_rlinfs_that_draws_one_step_for_a_pass_is_known_to_do_so(tree):
    """Against the sources: the models in whose folders both words are, beside heads that others choose."""
    root = package(tree) / "models" / "embodiment"
    drawing = {
        path.parent.relative_to(root).parts[0]
        for path in root.rglob("*.py")
        if all(word in path.read_text() for word in DRAWS)
    }
    families = {name.partition("_n1")[0] for name in ONE_STEP_MODELS}
    assert drawing - {"starvla"} <= families, "look at it, and add it to ONE_STEP_MODELS"
    assert len(drawing) > 5


def test_models_that_this_package_declares_draw_for_each_sample_or_are_known_not_to():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    block = text.partition('[project.entry-points."rlinf_async.models"]')[2].partition("\n\n")[0]
    declared = {line.partition(" = ")[0] for line in block.strip().splitlines()}
    assert set(OWN_MODELS) <= declared
    assert declared - set(OWN_MODELS) <= ONE_STEP_MODELS


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
